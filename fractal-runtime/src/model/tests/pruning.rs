//! Pruning of a small model with calibration: what layers see, steps, files, error curves, and input that cannot be.

use fractal_dsl::DType;
use fractal_dsl::pattern::{Mask, Named, Pattern};

use super::*;
use crate::prune::{LayerStatistics, Method, PrunedFile, ReadLimits, Reconstructed, SecondOrder, StoredWeight};
use crate::{Device, Tensor as Matrix};

/// Sentences of 4 to 19 tokens, so that two sets of them have none in common.
fn sentences(seed: u64, count: usize) -> Vec<Vec<u32>> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut sentence = || (0..rng.random_range(4..20)).map(|_| rng.random_range(0..VOCABULARY as u32)).collect();
    (0..count).map(|_| sentence()).collect()
}

fn calibration() -> Vec<Vec<u32>> {
    sentences(17, 96)
}

fn pattern(name: &str, n: usize, k: usize) -> Pattern {
    name.parse::<Named>().unwrap().pattern(n, k, 0.5).unwrap()
}

/// Every layer to a pattern.
fn plan(model: &BertModel, name: &str, method: &Method) -> BTreeMap<String, LayerPlan> {
    let layer = |layer: String| {
        let weight = model.weight(&layer).unwrap();
        let pattern = pattern(name, weight.n, weight.k);
        (layer, LayerPlan { pattern, method: method.clone() })
    };
    model.linear_names().into_iter().map(layer).collect()
}

fn second_order() -> Method {
    Method::SecondOrder(SecondOrder::default())
}

fn quiet(_: &str, _: &Reconstructed) {}

fn pruned(name: &str) -> PrunedModel {
    let dense = load(&checkpoint());
    dense.prune(&calibration(), &plan(&dense, name, &second_order()), DType::F32, quiet).unwrap()
}

/// 1 - the mean cosine of two models' embeddings.
fn moved(a: &BertModel, b: &BertModel, sentences: &[Vec<u32>]) -> f64 {
    let (a, b) = (a.embed(sentences).unwrap(), b.embed(sentences).unwrap());
    let products = a.iter().flatten().zip(b.iter().flatten()).map(|(a, b)| f64::from(*a) * f64::from(*b));
    1.0 - products.sum::<f64>() / sentences.len() as f64
}

fn same_weights(a: &BertModel, b: &BertModel, at: &str) {
    for name in a.linear_names() {
        assert!(a.weight(&name).unwrap().data == b.weight(&name).unwrap().data, "{at}: weight of {name}");
        assert!(a.bias(&name).unwrap() == b.bias(&name).unwrap(), "{at}: bias of {name}");
    }
}

#[test]
fn layers_that_are_left_leave_the_model() {
    let (dense, sentences) = (load(&checkpoint()), calibration());
    let (mut seen, tokens) = (vec![], sentences.iter().map(Vec::len).sum::<usize>());
    let same = dense.calibrate(&sentences, |name, weight, statistics| {
        assert_eq!(weight.data, dense.weight(name).unwrap().data);
        assert_eq!((statistics.tokens(), statistics.input_norms().len()), (tokens, weight.k));
        seen.push(name.to_owned());
        Ok(None)
    });
    let same = same.unwrap();
    assert_eq!(seen, dense.linear_names());
    same_weights(&same, &dense, "left");
    assert_eq!(same.embed(&batch()).unwrap(), dense.embed(&batch()).unwrap());
}

/// Statistics of many parts are those of one: more tokens than run at once.
#[test]
fn dense_weights_are_what_statistics_of_a_dense_model_want() {
    let dense = load(&checkpoint());
    for sentences in [calibration(), sentences(19, 800)] {
        let settings = SecondOrder::default();
        dense
            .calibrate(&sentences, |name, weight, statistics| {
                let tensor = Matrix::from_f32(DType::F32, weight.n, weight.k, weight.data)?;
                let made = settings.prune(&Pattern::dense(weight.n, weight.k)?, &tensor, statistics)?;
                let apart = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                let away = apart(&made.pruned.dense().to_f32(), weight.data);
                assert!(away < 1e-4, "{name}: weights off by {away}");
                let away = apart(made.bias.as_ref().expect("a bias"), dense.bias(name)?);
                assert!(away < 1e-4, "{name}: biases off by {away}");
                assert!(made.error < 1e-5 && made.least < 1e-5, "{name}: {} and {}", made.error, made.least);
                Ok(None)
            })
            .unwrap();
    }
}

/// Behind a layer that was pruned badly, the others are fitted to what makes up for it.
#[test]
fn layers_make_up_for_those_before_them() {
    let (dense, held_out) = (load(&checkpoint()), sentences(23, 40));
    let first = "encoder.layer.0.attention.self.value";
    let with = |fit: bool| {
        let pruned = dense.calibrate(&calibration(), |name, weight, statistics| {
            if name == first {
                let half = |(at, w): (usize, &f32)| if at % 2 == 0 { *w } else { 0.0 };
                return Ok(Some(NewWeights {
                    weights: weight.data.iter().enumerate().map(half).collect(),
                    bias: None,
                }));
            }
            if !fit {
                return Ok(None);
            }
            let tensor = Matrix::from_f32(DType::F32, weight.n, weight.k, weight.data)?;
            let pattern = Pattern::dense(weight.n, weight.k)?;
            let made = SecondOrder::default().prune(&pattern, &tensor, statistics)?;
            Ok(Some(NewWeights { weights: made.pruned.dense().to_f32(), bias: made.bias }))
        });
        moved(&dense, &pruned.unwrap(), &held_out)
    };
    let (plain, fitted) = (with(false), with(true));
    assert!(fitted < 0.9 * plain, "{fitted} fitted, {plain} as they were");
}

#[test]
fn second_order_moves_embeddings_less_than_magnitude() {
    let (dense, held_out) = (load(&checkpoint()), sentences(23, 60));
    for name in ["tw:8", "2:4", "bw:8x8", "tw:16", "ew"] {
        let by = |method: &Method| {
            let mut heard = vec![];
            let plan = plan(&dense, name, method);
            let made = dense.prune(&calibration(), &plan, DType::F32, |layer, _| heard.push(layer.to_owned())).unwrap();
            assert_eq!(heard, dense.linear_names());
            for (layer, made) in &made.layers {
                assert_eq!(made.pruned.pattern(), &plan[layer].pattern);
                // 9 blocks of columns have no half.
                assert!((made.pruned.sparsity() - 0.5).abs() < 0.06, "{name} {layer}");
                assert!(
                    (0.0..=2.0).contains(&made.error) && made.least <= made.error + 1e-3,
                    "{name} {layer}: {} and {}",
                    made.error,
                    made.least
                );
            }
            moved(&dense, &made.model, &held_out)
        };
        let (magnitude, own) = (by(&Method::Magnitude), by(&second_order()));
        let aware = by(&Method::ActivationAware);
        println!("{name}: moved {own:.4} by second order, {magnitude:.4} by magnitude, {aware:.4} activation-aware");
        assert!(own < 0.7 * magnitude.min(aware), "{name}: {own}, {magnitude} by magnitude, {aware} activation-aware");
    }
}

/// Each step's masks lie in those of the step before.
#[test]
fn steps_lead_to_the_plan_and_can_be_taken_up_again() {
    let (dense, sentences) = (load(&checkpoint()), calibration());
    for name in ["tw:8", "2:4", "bw:8x8", "tvw:8", "vnm:8", "ew"] {
        for method in [second_order(), Method::Magnitude] {
            let at = format!("{name} by {method:?}");
            let mut plan = plan(&dense, name, &method);
            // Far enough that every step drops something.
            if name == "tvw:8" || name == "vnm:8" {
                for (layer, plan) in &mut plan {
                    let weight = dense.weight(layer).unwrap();
                    plan.pattern = name.parse::<Named>().unwrap().pattern(weight.n, weight.k, 0.25).unwrap();
                }
            }
            let step = |step: usize, before: Option<&BertModel>| {
                dense.prune_step(&sentences, &plan, DType::F32, (step, 3), before, quiet).unwrap()
            };
            let first = step(1, None);
            // As if another process went on.
            let bytes = first.file(StoredWeight::Packed).unwrap().to_bytes().unwrap();
            let file = PrunedFile::from_bytes(&bytes, Path::new("state"), &ReadLimits::default()).unwrap();
            let mut again = dense.clone();
            again.set_pruned(&file).unwrap();
            same_weights(&again, &first.model, &at);

            let second = step(2, Some(&first.model));
            let resumed = step(2, Some(&again));
            let (third, resumed) = (step(3, Some(&second.model)), step(3, Some(&resumed.model)));
            same_weights(&third.model, &resumed.model, &at);
            for (layer, last) in &third.layers {
                assert_eq!(last.pruned, resumed.layers[layer].pruned, "{at}: {layer}");
                assert_eq!(last.pruned.pattern(), &plan[layer].pattern, "{at}: {layer}");
                let masks = [&first, &second, &third].map(|model| model.layers[layer].pruned.mask());
                for pair in masks.windows(2) {
                    let away = outside(&pair[1], &pair[0]);
                    assert_eq!(away, 0, "{at}: {layer} keeps {away} of {} dropped before", pair[1].count());
                }
            }
        }
    }
}

/// Elements of a mask that another one lacks.
fn outside(mask: &Mask, of: &Mask) -> usize {
    let places = (0..mask.n()).flat_map(|n| (0..mask.k()).map(move |k| (n, k)));
    places.filter(|&(n, k)| mask.contains(n, k) && !of.contains(n, k)).count()
}

#[test]
fn a_pruned_checkpoint_loads_as_any() {
    for (name, prefix) in [("tw:8", ""), ("2:4", "bert.")] {
        let pruned = pruned(name);
        let prefixed: Checkpoint =
            checkpoint().into_iter().map(|(name, tensor)| (format!("{prefix}{name}"), tensor)).collect();
        let path = Path::new("tiny.safetensors");
        let original = Weights::from_bytes(encode(&prefixed, Dtype::F32), path).unwrap();
        let bytes = pruned.checkpoint(&original).unwrap().to_bytes().unwrap();
        let weights = Weights::from_bytes(bytes.clone(), path).unwrap();
        let loaded = BertModel::from_weights(config(), weights).unwrap();
        same_weights(&loaded, &pruned.model, name);
        assert_eq!(loaded.embed(&batch()).unwrap(), pruned.model.embed(&batch()).unwrap(), "{name}");
        // It is a file of pruned weights, too.
        let file = PrunedFile::from_bytes(&bytes, path, &ReadLimits::default()).unwrap();
        for (layer, stored) in &file.layers {
            assert_eq!(stored.pruned(), Some(&pruned.layers[layer].pruned), "{layer}");
        }
        assert_eq!(file.others.len() + file.layers.len(), checkpoint().len());
    }
}

#[test]
fn a_checkpoint_of_another_model_is_an_error() {
    let pruned = pruned("tw:8");
    let mut other = checkpoint();
    other.remove("encoder.layer.1.output.dense.weight");
    let original = Weights::from_bytes(encode(&other, Dtype::F32), Path::new("other.safetensors")).unwrap();
    let error = error_of(pruned.checkpoint(&original));
    assert!(
        matches!(&error, ModelError::MissingTensor { name, .. } if name == "encoder.layer.1.output.dense.weight"),
        "{error}"
    );
}

#[test]
fn packed_weights_run_as_the_model_that_was_pruned() {
    let dense = load(&checkpoint());
    for name in ["tw:8", "2:4", "bw:8x8", "ew"] {
        let pruned = pruned(name);
        for store in [StoredWeight::Packed, StoredWeight::Dense] {
            let bytes = pruned.file(store).unwrap().to_bytes().unwrap();
            let file = PrunedFile::from_bytes(&bytes, Path::new("m"), &ReadLimits::default()).unwrap();
            let mut sparse = dense.clone();
            sparse.run_pruned(&file, &Device::cpu()).unwrap();
            assert!(sparse.operator(&sparse.linear_names()[0]).unwrap().describe().starts_with("sparse f32"));
            let expected = pruned.model.embed(&batch()).unwrap();
            let expected: Vec<Vec<f64>> = expected.iter().map(|e| e.iter().map(|&v| f64::from(v)).collect()).collect();
            let difference = greatest_difference(&sparse.embed(&batch()).unwrap(), &expected);
            assert!(difference < 1e-4, "{name}: off by {difference}");
        }
    }
}

/// A weight in 16 bits is rounded once: what the file holds is what the model runs.
#[test]
fn halves_come_back_as_they_run() {
    let dense = load(&checkpoint());
    for dtype in [DType::F16, DType::BF16] {
        let plan = plan(&dense, "tw:8", &second_order());
        let pruned = dense.prune(&calibration(), &plan, dtype, quiet).unwrap();
        let bytes = pruned.file(StoredWeight::Packed).unwrap().to_bytes().unwrap();
        let file = PrunedFile::from_bytes(&bytes, Path::new("m"), &ReadLimits::default()).unwrap();
        let mut again = dense.clone();
        again.set_pruned(&file).unwrap();
        same_weights(&again, &pruned.model, &dtype.to_string());
        again.run_pruned(&file, &Device::cpu()).unwrap();
        assert!(moved(&again, &pruned.model, &batch()) < 1e-6);
    }
}

#[test]
fn files_that_do_not_fit_the_model_are_errors() {
    let (mut dense, pruned) = (load(&checkpoint()), pruned("tw:8"));
    let file = pruned.file(StoredWeight::Packed).unwrap();
    let layer = "encoder.layer.0.output.dense";
    let mut renamed = file.clone();
    let weight = renamed.layers.remove(layer).unwrap();
    renamed.layers.insert("encoder.layer.9.output.dense".into(), weight);
    assert!(
        matches!(error_of(dense.set_pruned(&renamed)), ModelError::UnknownLinear { name, .. } if name.contains(".9."))
    );
    let mut wrong = file.clone();
    let other = file.layers["encoder.layer.0.attention.self.key"].clone();
    wrong.layers.insert(layer.into(), other);
    assert!(matches!(error_of(dense.set_pruned(&wrong)), ModelError::OperatorShape { .. }));
    // As many values, of another shape.
    let mut turned = file.clone();
    turned.layers.insert(layer.into(), file.layers["encoder.layer.0.intermediate.dense"].clone());
    let error = error_of(dense.set_pruned(&turned));
    assert!(matches!(error, ModelError::OperatorShape { .. }), "{error}");
    // Nothing of it is set, though other layers fit.
    assert!(dense.run_pruned(&turned, &Device::cpu()).is_err());
    assert_eq!(dense.embed(&batch()).unwrap(), load(&checkpoint()).embed(&batch()).unwrap());
    let mut masked = file.clone();
    let mask = crate::PrunedMask::from(file.layers[layer].pruned().unwrap());
    masked.layers.insert(layer.into(), StoredWeight::Mask(mask));
    load(&checkpoint()).set_pruned(&masked).unwrap();
    // A model of which the plan was made by another.
    let mut unknown = pruned.clone();
    let made = unknown.layers[layer].clone();
    unknown.layers.insert("pooler".into(), made);
    assert!(matches!(error_of(unknown.file(StoredWeight::Packed)), ModelError::UnknownLinear { .. }));
}

#[test]
fn losses_fall_as_layers_keep_more() {
    let (dense, sentences) = (load(&checkpoint()), sentences(29, 40));
    for name in ["tw:8", "bw:8x8", "tvw:8"] {
        let mut heard = vec![];
        let least = |_: &str, n: usize, k: usize| {
            Ok(name.parse::<Named>().unwrap().pattern(n, k, if name == "bw:8x8" { 0.25 } else { 0.1 }).unwrap())
        };
        let curves =
            dense.error_curves(&sentences, 0.5, &SecondOrder::default(), least, |layer| heard.push(layer.to_owned()));
        let curves = curves.unwrap();
        assert_eq!(heard, dense.linear_names());
        for (layer, curve) in &curves {
            let (weight, points) = (dense.weight(layer).unwrap(), &curve.points);
            assert_eq!(curve.elements, weight.n * weight.k);
            assert!(
                points.len() > 2 && points.iter().all(|p| p.0.is_finite() && p.1.is_finite()),
                "{name} {layer}: {points:?}"
            );
            assert!(points[0].0 < 0.3 && points[points.len() - 1].0 == 1.0, "{name} {layer}: {points:?}");
            let greatest = points.iter().map(|p| p.1).fold(0.0, f64::max);
            for pair in points.windows(2) {
                assert!(
                    pair[0].0 < pair[1].0 && pair[1].1 <= pair[0].1 + 1e-3 * greatest,
                    "{name} {layer}: {points:?}"
                );
            }
            assert!(greatest > 0.0 && points[points.len() - 1].1 < 1e-3 * greatest, "{name} {layer}: {points:?}");
        }
        let curves: Vec<_> = curves.into_values().collect();
        let ratios = crate::prune::budget::by_error(&curves, 0.5, 0.2, &vec![1.0; curves.len()]).unwrap();
        assert_eq!(ratios.len(), 6 * LAYERS);
    }
}

#[test]
fn errors_alone_are_those_of_the_whole_model() {
    let (dense, sentences) = (load(&checkpoint()), calibration());
    let (measured, settings) = (&sentences[..20], SecondOrder::default());
    let names = dense.linear_names();
    let options: BTreeMap<String, Vec<Pattern>> = names
        .iter()
        // Some layers are left out.
        .filter(|name| !name.ends_with("key"))
        .map(|name| {
            let weight = dense.weight(name).unwrap();
            (name.clone(), ["tw:8", "2:4"].map(|option| pattern(option, weight.n, weight.k)).to_vec())
        })
        .collect();
    let mut found: Vec<(String, usize, f64)> = vec![];
    let hear = |name: &str, option, error| {
        found.push((name.to_owned(), option, error));
        Ok(())
    };
    dense.errors_alone(&sentences, measured, &options, &settings, hear).unwrap();
    assert_eq!(found.len(), 2 * 5 * LAYERS);
    let mut news = vec![];
    dense
        .calibrate(&sentences, |name, weight, statistics| {
            let tensor = Matrix::from_f32(DType::F32, weight.n, weight.k, weight.data)?;
            for (number, pattern) in options.get(name).into_iter().flatten().enumerate() {
                let made = settings.prune(pattern, &tensor, statistics.clone())?;
                news.push((name.to_owned(), number, made.pruned.dense().to_f32(), made.bias));
            }
            Ok(None)
        })
        .unwrap();
    // Also in an order in which they do not run.
    let mut reference = super::super::alone::Reference::new(&dense, measured).unwrap();
    for ((name, number, error), (of, option, weights, bias)) in found.into_iter().zip(news).rev() {
        assert_eq!((&name, number), (&of, option));
        let mut alone = dense.clone();
        alone.set_weight(&name, weights.clone(), bias.clone()).unwrap();
        let whole = moved(&dense, &alone, measured);
        assert!(error > 0.0 && (error - whole).abs() <= 1e-9, "{name} {number}: {error} for {whole}");
        assert_eq!(reference.loss(&name, NewWeights { weights, bias }).unwrap(), error, "{name} {number}");
    }
    // What the listener returns ends it, and names the layer.
    let stop = |_: &str, _, _| Err("enough".into());
    let error = dense.errors_alone(&sentences, measured, &options, &settings, stop).unwrap_err().to_string();
    assert_eq!(error, format!("layer `{}`: enough", names[0]));
    let unknown = BTreeMap::from([("pooler".to_owned(), vec![])]);
    assert!(dense.errors_alone(&sentences, measured, &unknown, &settings, |_, _, _| Ok(())).is_err());
}

#[test]
fn plans_that_cannot_be_are_errors() {
    let (dense, sentences) = (load(&checkpoint()), sentences(31, 4));
    let whole = plan(&dense, "tw:8", &second_order());
    let told = |plan: &BTreeMap<String, LayerPlan>, steps, before: Option<&BertModel>| {
        let made = dense.prune_step(&sentences, plan, DType::F32, steps, before, |_, _| {});
        made.err().expect("an error").to_string()
    };
    let mut unknown = whole.clone();
    unknown.insert("pooler".into(), whole.values().next().unwrap().clone());
    assert!(told(&unknown, (1, 1), None).starts_with("no linear layer is named `pooler`"));
    let mut turned = whole.clone();
    let layer = "encoder.layer.0.output.dense";
    turned.get_mut(layer).unwrap().pattern = pattern("tw:8", WIDE, HIDDEN);
    assert_eq!(
        told(&turned, (1, 1), None),
        format!("layer `{layer}`: prune: the weight is 32x72; the pattern is for 72x32")
    );
    for steps in [(0, 3), (4, 3), (1, 0), (0, 0)] {
        let error = told(&whole, steps, None);
        let expected = format!("setting `step`: expected 1 to the number of steps, found {} of {}", steps.0, steps.1);
        assert_eq!(error, expected);
    }
    // A model of other sizes.
    let mut json = config_json();
    json["intermediate_size"] = HIDDEN.into();
    let small = BertConfig::from_json(&json.to_string(), Path::new("config.json")).unwrap();
    let mut tensors = checkpoint();
    for (name, (shape, values)) in &mut tensors {
        if name.contains(".intermediate.dense") || name.ends_with("output.dense.weight") && shape[1] == WIDE {
            shape.iter_mut().filter(|extent| **extent == WIDE).for_each(|extent| *extent = HIDDEN);
            values.truncate(shape.iter().product());
        }
    }
    let weights = Weights::from_bytes(encode(&tensors, Dtype::F32), Path::new("small.safetensors")).unwrap();
    let small = BertModel::from_weights(small, weights).unwrap();
    let error = told(&whole, (2, 3), Some(&small));
    assert!(error.contains("the weight is 32x32; the pattern is for 72x32"), "{error}");
}

#[test]
fn sentences_that_cannot_be_calibrated_on_are_errors() {
    let dense = load(&checkpoint());
    let plan = plan(&dense, "tw:8", &second_order());
    let long = VOCABULARY as u32;
    let bad = [
        (vec![vec![1, 2], vec![]], "sentence 1 has no tokens"),
        (vec![vec![], vec![1]], "sentence 0 has no tokens"),
        (vec![vec![1], vec![2, 3, long]], "sentence 1, token 2: expected an id below 50, found 50"),
        (vec![vec![u32::MAX]], "sentence 0, token 0: expected an id below 50"),
    ];
    for (sentences, expected) in bad {
        let told = |error: CalibrateError| {
            assert!(error.to_string().starts_with(expected), "{error}");
            assert!(matches!(error, CalibrateError::Model(_)));
        };
        told(dense.calibrate(&sentences, |_, _, _| panic!("nothing to prune by")).err().unwrap());
        told(dense.prune(&sentences, &plan, DType::F32, quiet).err().unwrap());
        let least = |_: &str, n, k| Ok(pattern("tw:8", n, k));
        told(dense.error_curves(&sentences, 0.5, &SecondOrder::default(), least, |_| ()).unwrap_err());
    }
    // None at all: weights are kept by size.
    let none = dense.prune(&[], &plan, DType::F32, quiet).unwrap();
    assert!(
        none.layers
            .values()
            .all(|layer| layer.pruned.dense().is_finite() && (layer.pruned.sparsity() - 0.5).abs() < 1e-9)
    );
    let curves = dense.error_curves(&[], 0.5, &SecondOrder::default(), |_, n, k| Ok(pattern("tw:8", n, k)), |_| ());
    assert!(curves.unwrap().values().all(|curve| curve.points.iter().all(|point| point.1 == 0.0)));
    // One longer than the model takes is cut as when it is embedded.
    let long: Vec<u32> = (0..90).map(|token| token % VOCABULARY as u32).collect();
    let cut = [&long[..POSITIONS - 1], &long[89..]].concat();
    let by = |sentence: Vec<u32>| dense.prune(&[sentence], &plan, DType::F32, quiet).unwrap();
    same_weights(&by(long).model, &by(cut).model, "cut");
}

/// What the callback says goes to the caller with the layer's name; a layer that cannot be set is told.
#[test]
fn layers_that_are_not_pruned_are_told() {
    let (dense, sentences) = (load(&checkpoint()), sentences(31, 4));
    let name = "encoder.layer.1.intermediate.dense";
    let only = |name: &str, new: Result<NewWeights, String>| {
        let name = name.to_owned();
        let mut new = Some(new);
        let prune = |layer: &str, _: DenseWeight<'_>, _: LayerStatistics| match layer == name {
            true => Ok(Some(new.take().expect("once")?)),
            false => Ok(None),
        };
        dense.calibrate(&sentences, prune).err().expect("an error").to_string()
    };
    assert_eq!(only(name, Err("no".into())), format!("layer `{name}`: no"));
    let new = |weights: Vec<f32>, bias| Ok(NewWeights { weights, bias });
    let short = only(name, new(vec![0.0; 3], None));
    assert_eq!(short, format!("parameter `{name}.weight`: expected 2304 values, found 3"));
    let nan = only(name, new(vec![f32::NAN; HIDDEN * WIDE], None));
    assert_eq!(nan, format!("parameter `{name}.weight`: value 0 is NaN; expected finite numbers"));
    let bias = only(name, new(vec![0.0; HIDDEN * WIDE], Some(vec![0.0; 2])));
    assert_eq!(bias, format!("parameter `{name}.bias`: expected 72 values, found 2"));
    // Activations that grow beyond what can be summed up.
    let huge = only("encoder.layer.1.intermediate.dense", new(vec![3e38; HIDDEN * WIDE], None));
    assert!(
        huge.starts_with("layer `encoder.layer.1.output.dense`: prune: calibration: expected activations"),
        "{huge}"
    );
}
