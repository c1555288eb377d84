//! Gradients against differences of the f64 forward pass.

use super::*;

/// A direction for each embedding: the loss is the sum of their products.
fn directions(sentences: usize) -> Vec<Vec<f32>> {
    let mut rng = StdRng::seed_from_u64(3);
    (0..sentences).map(|_| (0..HIDDEN).map(|_| rng.random_range(-1.0..1.0)).collect()).collect()
}

fn sentences() -> Vec<Vec<u32>> {
    batch().into_iter().filter(|sentence| sentence.len() < 18).collect()
}

/// The gradient of the sum over sentences of direction . embedding.
fn gradients(model: &BertModel, sentences: &[Vec<u32>]) -> Gradients {
    model.gradients(sentences, |embeddings| Ok(directions(embeddings.len()))).unwrap()
}

/// The part of a gradient that a checkpoint's tensor has.
fn part<'a>(gradients: &'a Gradients, tensor: &str) -> &'a [f32] {
    let (name, kind) = tensor.rsplit_once('.').unwrap();
    match (gradients.linears.get(name), gradients.norms.get(name), kind) {
        (Some(linear), _, "weight") => &linear.weight,
        (Some(linear), _, _) => &linear.bias,
        (_, Some(norm), "weight") => &norm.gamma,
        (_, Some(norm), _) => &norm.beta,
        _ => panic!("{tensor} has no gradient"),
    }
}

fn trainable(tensors: &Checkpoint) -> Vec<String> {
    tensors.keys().filter(|name| !name.contains("_embeddings.")).cloned().collect()
}

#[test]
fn every_parameter_has_the_gradient_of_the_naive_forward_pass() {
    let tensors = checkpoint();
    let sentences = sentences();
    let gradients = gradients(&load(&tensors), &sentences);
    assert_eq!(trainable(&tensors).len(), 2 * (gradients.linears.len() + gradients.norms.len()));
    let directions = directions(sentences.len());
    let loss = |tensors: &Checkpoint| -> f64 {
        let embeddings = sentences.iter().map(|sentence| Naive(tensors).embed(sentence));
        let products = embeddings.zip(&directions).flat_map(|(embedding, direction)| {
            embedding.into_iter().zip(direction).map(|(e, d)| e * f64::from(*d)).collect::<Vec<_>>()
        });
        products.sum()
    };
    let mut rng = StdRng::seed_from_u64(5);
    for name in trainable(&tensors) {
        let gradient = part(&gradients, &name);
        let steps: Vec<f32> = gradient.iter().map(|_| rng.random_range(-1e-3..1e-3)).collect();
        let moved = |sign: f32| {
            let mut moved = tensors.clone();
            let values = &mut moved.get_mut(&name).unwrap().1;
            values.iter_mut().zip(&steps).for_each(|(value, step)| *value += sign * step);
            moved
        };
        let (before, behind) = (moved(-1.0), moved(1.0));
        let expected = loss(&behind) - loss(&before);
        // The steps as they were rounded.
        let steps = before[&name].1.iter().zip(&behind[&name].1).map(|(a, b)| f64::from(*b) - f64::from(*a));
        let found: f64 = steps.zip(gradient).map(|(step, g)| step * f64::from(*g)).sum();
        let length: f64 = gradient.iter().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
        // What a random step of this size changes; the difference itself may be small by chance. A key's bias moves all
        // of a query's scores alike, so that its gradient is 0.
        let usual = (1e-3 / 3f64.sqrt() * 2.0 * length).max(1e-5);
        let error = (found - expected).abs() / usual;
        assert!(error < 1e-3, "{name}: found {found}, expected {expected}, usual {usual}");
    }
}

#[test]
fn relu_has_its_gradient() {
    let mut json = config_json();
    json["hidden_act"] = "relu".into();
    let config = BertConfig::from_json(&json.to_string(), Path::new("config.json")).unwrap();
    let weights = Weights::from_bytes(encode(&checkpoint(), Dtype::F32), Path::new("tiny.safetensors")).unwrap();
    let mut model = BertModel::from_weights(config, weights).unwrap();
    // Every other feature is on for all tokens and the rest off, so that no step crosses a kink.
    for block in 0..LAYERS {
        let bias = (0..WIDE).map(|feature| if feature % 2 == 0 { 9.0 } else { -9.0 });
        model.set_bias(&format!("encoder.layer.{block}.intermediate.dense"), bias.collect()).unwrap();
    }
    let sentences = sentences();
    let gradients = gradients(&model, &sentences);
    let directions = directions(sentences.len());
    let loss = |model: &BertModel| -> f64 {
        let embeddings = model.embed(&sentences).unwrap();
        let pairs = embeddings.iter().flatten().zip(directions.iter().flatten());
        pairs.map(|(e, d)| f64::from(*e) * f64::from(*d)).sum()
    };
    for name in ["encoder.layer.0.intermediate.dense", "encoder.layer.1.output.dense"] {
        let gradient = &gradients.linears[name].weight;
        let length = gradient.iter().map(|g| g * g).sum::<f32>().sqrt();
        let moved = |by: f32| {
            let mut moved = model.clone();
            let weight = model.weight(name).unwrap().data.iter().zip(gradient).map(|(w, g)| w + by * g / length);
            moved.set_weight(name, weight.collect(), None).unwrap();
            loss(&moved)
        };
        let found = (moved(3e-3) - moved(-3e-3)) / 6e-3 / f64::from(length);
        assert!((found - 1.0).abs() < 5e-3, "{name}: {found} of the slope along the gradient");
    }
}

#[test]
fn the_loss_sees_the_embeddings_of_the_forward_pass() {
    let model = load(&checkpoint());
    let sentences = batch();
    let mut seen = vec![];
    let gradients = model.gradients(&sentences, |embeddings| {
        seen = embeddings.to_vec();
        Ok(directions(embeddings.len()))
    });
    assert_eq!(seen, model.embed(&sentences).unwrap());
    let again = model.gradients(&sentences, |embeddings| Ok(directions(embeddings.len())));
    assert_eq!(gradients.unwrap(), again.unwrap());
}

#[test]
fn many_sentences_run_in_parts() {
    let model = load(&checkpoint());
    let sentence = &batch()[6];
    let count = MAX_BATCH_TOKENS / POSITIONS * 5 / 2;
    let direction = directions(1).remove(0);
    let one = model.gradients(std::slice::from_ref(sentence), |_| Ok(vec![direction.clone()])).unwrap();
    let mut calls = 0;
    let many = model
        .gradients(&vec![sentence.clone(); count], |embeddings| {
            calls += 1;
            let share = 1.0 / embeddings.len() as f32;
            Ok(vec![direction.iter().map(|d| d * share).collect(); embeddings.len()])
        })
        .unwrap();
    assert_eq!(calls, 1);
    for name in trainable(&checkpoint()) {
        let (one, many) = (part(&one, &name), part(&many, &name));
        let scale = one.iter().fold(1e-3f32, |greatest, g| greatest.max(g.abs()));
        let error = one.iter().zip(many).map(|(a, b)| (a - b).abs() / scale).fold(0.0, f32::max);
        assert!(error < 1e-4, "{name}: off by {error}");
    }
    let none = model.gradients(&[], |embeddings| Ok(embeddings.to_vec())).unwrap();
    assert!(none.linears.values().all(|linear| linear.weight.iter().all(|&g| g == 0.0)));
}

#[test]
fn gradients_add_up() {
    let model = load(&checkpoint());
    let one = gradients(&model, &sentences());
    let mut sum = Gradients::default();
    sum.add(1.0, &one).unwrap();
    assert_eq!(sum, one);
    sum.add(-1.0, &one).unwrap();
    sum.add_squares(0.25, &one).unwrap();
    for name in trainable(&checkpoint()) {
        let pairs = part(&sum, &name).iter().zip(part(&one, &name));
        assert!(pairs.into_iter().all(|(sum, g)| *sum == 0.25 * g * g), "{name}");
    }
    let mut short = one.clone();
    let name = "encoder.layer.0.output.dense";
    short.linears.get_mut(name).unwrap().bias.pop();
    let error = error_of(short.add(1.0, &one)).to_string();
    assert_eq!(error, format!("parameter `{name}.bias`: expected 31 values, found 32"));
}

#[test]
fn what_has_no_gradient_is_an_error() {
    let mut model = load(&checkpoint());
    let sentences = sentences();
    let with = |gradient: Vec<Vec<f32>>| error_of(model.gradients(&sentences, |_| Ok(gradient))).to_string();
    assert_eq!(with(directions(2)), format!("loss: expected {} gradients of embeddings, found 2", sentences.len()));
    let mut short = directions(sentences.len());
    short[1].pop();
    assert_eq!(with(short), "loss: expected 32 values of an embedding's gradient, found 31");
    let mut spoiled = directions(sentences.len());
    spoiled[2][7] = f32::NAN;
    assert_eq!(with(spoiled), "loss: the gradient by the embedding of sentence 2 is not finite");
    let error = model.gradients(&sentences, |_| Err(ModelError::Loss("no labels".into())));
    assert_eq!(error_of(error).to_string(), "loss: no labels");
    let error = error_of(model.gradients(&[vec![]], |e| Ok(e.to_vec())));
    assert!(matches!(error, ModelError::EmptySentence { sentence: 0 }));

    let name = "encoder.layer.1.output.dense";
    let weight = model.weight(name).unwrap().data.to_vec();
    let op = Doubled(DenseLinear::new(weight.clone().into(), HIDDEN, WIDE).unwrap());
    model.replace(name, Box::new(op)).unwrap();
    let error = error_of(model.gradients(&sentences, |e| Ok(e.to_vec()))).to_string();
    assert!(error.starts_with(&format!("linear layer `{name}` runs `doubled`; expected its dense weight")));
    model.set_weight(name, weight, None).unwrap();
    assert!(model.gradients(&sentences, |e| Ok(e.to_vec())).is_ok());
}
