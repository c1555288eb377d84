//! Distillation of a small pruned model.

use std::ops::ControlFlow;

use fractal_dsl::pattern::{Mask, Named};

use super::*;
use crate::{Magnitude, Tensor as Matrix, pack_masked, prune};

/// Half of every layer, by magnitude.
fn masks(model: &BertModel) -> BTreeMap<String, Mask> {
    let mask = |name: String| {
        let weight = model.weight(&name).unwrap();
        let pattern = "bw:4x4".parse::<Named>().unwrap().pattern(weight.n, weight.k, 0.5).unwrap();
        let dense = Matrix::from_f32(fractal_dsl::DType::F32, weight.n, weight.k, weight.data).unwrap();
        let pruned = prune(&pattern, &dense, &Magnitude).unwrap();
        (name, pattern.mask(pruned.selection()).unwrap())
    };
    model.linear_names().into_iter().map(mask).collect()
}

fn sentences() -> Vec<Vec<u32>> {
    let mut rng = StdRng::seed_from_u64(13);
    let mut sentence = || (0..rng.random_range(3..12)).map(|_| rng.random_range(0..VOCABULARY as u32)).collect();
    (0..48).map(|_| sentence()).collect()
}

fn settings() -> DistillSettings {
    DistillSettings { epochs: 8, batch: 8, learning_rate: 3e-3, ..DistillSettings::default() }
}

fn run(settings: &DistillSettings) -> (BertModel, Vec<Epoch>) {
    let dense = load(&checkpoint());
    let targets = dense.embed(&sentences()).unwrap();
    let (mut model, mut epochs) = (dense.clone(), vec![]);
    let mut progress = |epoch: &Epoch| {
        if epoch.ended() {
            epochs.push(*epoch);
        }
        ControlFlow::Continue(())
    };
    distill(&mut model, &masks(&dense), &sentences(), &targets, settings, &mut progress).unwrap();
    (model, epochs)
}

#[test]
fn the_loss_falls_and_masks_hold() {
    let dense = load(&checkpoint());
    let targets = dense.embed(&sentences()).unwrap();
    let masks = masks(&dense);
    let mut pruned = dense.clone();
    for (name, mask) in &masks {
        let weight = mask.apply(dense.weight(name).unwrap().data).unwrap();
        pruned.set_weight(name, weight, None).unwrap();
    }
    let before = cosine(&pruned.embed(&sentences()).unwrap(), &targets).unwrap().value;
    let (trained, epochs) = run(&settings());
    let behind = cosine(&trained.embed(&sentences()).unwrap(), &targets).unwrap().value;
    assert!(behind < 0.3 * before, "from {before} to {behind}");
    assert!(epochs[7].loss < 0.5 * epochs[0].loss && epochs[7].cosine < 0.4 * epochs[0].cosine, "{epochs:?}");
    assert_eq!((epochs.len(), epochs[7].epoch, epochs[7].epochs), (8, 8, 8));
    assert!(epochs.iter().all(|e| (e.cosine + 0.1f32 as f64 * e.relation - e.loss).abs() < 1e-9 && e.relation > 0.0));

    for (name, mask) in &masks {
        let weight = trained.weight(name).unwrap();
        for (at, value) in weight.data.iter().enumerate() {
            assert!(mask.contains(at / weight.k, at % weight.k) || value.to_bits() == 0, "{name} at {at}: {value}");
        }
        assert_ne!(trained.bias(name).unwrap(), dense.bias(name).unwrap());
        let pattern = "bw:4x4".parse::<Named>().unwrap().pattern(weight.n, weight.k, 0.5).unwrap();
        let weight = Matrix::from_f32(fractal_dsl::DType::F32, weight.n, weight.k, weight.data).unwrap();
        assert_eq!(pack_masked(&pattern, &weight, mask).unwrap().dense(), weight);
    }
    for name in dense.norm_names() {
        assert_ne!(trained.norm(&name).unwrap(), dense.norm(&name).unwrap());
    }
    // The dense model shared its weights with the one that was trained.
    assert_eq!(dense.embed(&sentences()).unwrap(), targets);
}

#[test]
fn a_seed_fixes_the_run() {
    let settings = DistillSettings { epochs: 2, relation: 0.0, ..settings() };
    let ((first, epochs), (second, again)) = (run(&settings), run(&settings));
    assert_eq!(epochs, again);
    assert_eq!(first.embed(&batch()).unwrap(), second.embed(&batch()).unwrap());
    let (_, other) = run(&DistillSettings { seed: 1, ..settings });
    assert_ne!(epochs, other);
    // Whole batches that stay together, and all sentences in one group with a short one.
    let (_, grouped) = run(&DistillSettings { together: 8, ..settings });
    assert_ne!(epochs, grouped);
    let (_, one) = run(&DistillSettings { together: 48, ..settings });
    let (_, ordered) = run(&DistillSettings { together: 100, seed: 1, ..settings });
    assert_eq!(one, ordered);
}

#[test]
fn progress_may_stop_and_errors_change_nothing() {
    let dense = load(&checkpoint());
    let (sentences, masks) = (sentences(), masks(&dense));
    let targets = dense.embed(&sentences).unwrap();
    let mut model = dense.clone();
    let mut count = 0;
    let mut stop = |epoch: &Epoch| {
        count += 1;
        assert_eq!((epoch.seen, epoch.sentences), (8 * (1 + (count - 1) % 6), 48));
        assert_eq!((epoch.epoch, epoch.ended()), (1 + (count - 1) / 6, count % 6 == 0));
        if count == 8 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    distill(&mut model, &masks, &sentences, &targets, &settings(), &mut stop).unwrap();
    assert_eq!(count, 8);
    assert_ne!(model.embed(&sentences).unwrap(), targets);

    let mut model = dense.clone();
    let mut text = |masks: &BTreeMap<_, _>, targets: &[Vec<f32>], settings: DistillSettings| {
        let mut go_on = |_: &Epoch| ControlFlow::Continue(());
        let result = distill(&mut model, masks, &sentences, targets, &settings, &mut go_on);
        assert_eq!(model.embed(&sentences).unwrap(), dense.embed(&sentences).unwrap());
        error_of(result).to_string()
    };
    assert_eq!(text(&masks, &targets[1..], settings()), "loss: expected 48 targets, one for each sentence, found 47");
    let mut spoiled = targets.clone();
    spoiled[3][0] = f32::INFINITY;
    assert_eq!(text(&masks, &spoiled, settings()), "the target of sentence 3 is not finite");
    spoiled[3].pop();
    assert_eq!(text(&masks, &spoiled, settings()), "loss: expected 32 values of a target, found 31");
    let name = "encoder.layer.0.output.dense";
    let mut wrong = masks.clone();
    wrong.insert(name.into(), Mask::empty(WIDE, HIDDEN));
    let expected = format!("linear layer `{name}`: expected a mask of n, k = [32, 72], found [72, 32]");
    assert_eq!(text(&wrong, &targets, settings()), expected);
    wrong = BTreeMap::from([("pooler".into(), Mask::empty(1, 1))]);
    assert!(text(&wrong, &targets, settings()).starts_with("no linear layer is named `pooler`"));
    for (name, wrong) in [
        ("batch", DistillSettings { batch: 0, ..settings() }),
        ("together", DistillSettings { together: 0, ..settings() }),
        ("learning_rate", DistillSettings { learning_rate: f32::NAN, ..settings() }),
        ("warm_up", DistillSettings { warm_up: 1.5, ..settings() }),
        ("relation", DistillSettings { relation: -1.0, ..settings() }),
        ("temperature", DistillSettings { temperature: 0.0, ..settings() }),
    ] {
        assert!(text(&masks, &targets, wrong).starts_with(&format!("setting `{name}`: expected ")));
    }
    let diverged = text(&masks, &targets, DistillSettings { learning_rate: 1e38, ..settings() });
    assert!(diverged.starts_with("distill: the loss is not finite in epoch 1"), "{diverged}");
    // By the only step there is.
    let one = DistillSettings { epochs: 1, batch: 48, learning_rate: 1e38, ..settings() };
    let diverged = text(&masks, &targets, one);
    assert!(diverged.starts_with("distill: the loss is not finite in epoch 1"), "{diverged}");
}
