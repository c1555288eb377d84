//! The encoder against a naive f64 forward pass, against embeddings of a known checkpoint, and against damaged input.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use safetensors::Dtype;
use safetensors::tensor::TensorView;

use super::*;

mod distill;
mod gradient;
mod parameters;
mod pruning;

const HIDDEN: usize = 32;
const WIDE: usize = 72;
const HEADS: usize = 4;
const LAYERS: usize = 2;
const VOCABULARY: usize = 50;
const POSITIONS: usize = 40;

/// Name -> (shape, values).
type Checkpoint = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

fn config_json() -> serde_json::Value {
    serde_json::json!({
        "hidden_size": HIDDEN,
        "intermediate_size": WIDE,
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": POSITIONS,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "hidden_act": "gelu",
        "position_embedding_type": "absolute",
    })
}

fn config() -> BertConfig {
    BertConfig::from_json(&config_json().to_string(), Path::new("config.json")).unwrap()
}

fn checkpoint() -> Checkpoint {
    let mut rng = StdRng::seed_from_u64(7);
    let mut tensors = Checkpoint::new();
    let mut add = |name: String, shape: &[usize], centre: f32, spread: f32| {
        let values = (0..shape.iter().product()).map(|_| centre + rng.random_range(-spread..spread)).collect();
        tensors.insert(name, (shape.to_vec(), values));
    };
    for (table, rows) in [("word", VOCABULARY), ("position", POSITIONS), ("token_type", 2)] {
        let name = format!("embeddings.{table}_embeddings.weight");
        add(name, &[rows, HIDDEN], 0.0, 1.0);
    }
    let mut norms = vec!["embeddings.LayerNorm".to_owned()];
    for layer in 0..LAYERS {
        let block = format!("encoder.layer.{layer}");
        for (part, n, k) in [
            ("attention.self.query", HIDDEN, HIDDEN),
            ("attention.self.key", HIDDEN, HIDDEN),
            ("attention.self.value", HIDDEN, HIDDEN),
            ("attention.output.dense", HIDDEN, HIDDEN),
            ("intermediate.dense", WIDE, HIDDEN),
            ("output.dense", HIDDEN, WIDE),
        ] {
            add(format!("{block}.{part}.weight"), &[n, k], 0.0, 0.4);
            add(format!("{block}.{part}.bias"), &[n], 0.0, 0.2);
        }
        norms.push(format!("{block}.attention.output.LayerNorm"));
        norms.push(format!("{block}.output.LayerNorm"));
    }
    for norm in norms {
        add(format!("{norm}.weight"), &[HIDDEN], 1.0, 0.3);
        add(format!("{norm}.bias"), &[HIDDEN], 0.0, 0.3);
    }
    tensors
}

fn encode(tensors: &Checkpoint, dtype: Dtype) -> Vec<u8> {
    let bytes: Vec<(&String, &Vec<usize>, Vec<u8>)> = tensors
        .iter()
        .map(|(name, (shape, values))| {
            let bytes = values.iter().flat_map(|&v| match dtype {
                Dtype::F16 => f16::from_f32(v).to_le_bytes().to_vec(),
                Dtype::BF16 => bf16::from_f32(v).to_le_bytes().to_vec(),
                Dtype::F64 => f64::from(v).to_le_bytes().to_vec(),
                _ => v.to_le_bytes().to_vec(),
            });
            (name, shape, bytes.collect())
        })
        .collect();
    let views = bytes.iter().map(|(name, shape, bytes)| {
        let view = TensorView::new(dtype, shape.to_vec(), bytes).unwrap();
        (name.as_str(), view)
    });
    safetensors::serialize(views, None).unwrap()
}

fn try_load(tensors: &Checkpoint, dtype: Dtype) -> Result<BertModel, ModelError> {
    let path = Path::new("tiny.safetensors");
    BertModel::from_weights(config(), Weights::from_bytes(encode(tensors, dtype), path)?)
}

fn load(tensors: &Checkpoint) -> BertModel {
    try_load(tensors, Dtype::F32).unwrap()
}

fn error_of<T>(result: Result<T, ModelError>) -> ModelError {
    result.err().expect("an error")
}

fn batch() -> Vec<Vec<u32>> {
    let mut rng = StdRng::seed_from_u64(11);
    [1, 2, 15, 16, 17, 33, POSITIONS]
        .map(|len| (0..len).map(|_| rng.random_range(0..VOCABULARY as u32)).collect())
        .to_vec()
}

/// The encoder in f64, token-major, straight from the formulas.
struct Naive<'a>(&'a Checkpoint);

impl Naive<'_> {
    fn get(&self, name: &str) -> Vec<f64> {
        self.0[name].1.iter().map(|&v| f64::from(v)).collect()
    }

    fn norm(&self, x: &mut [Vec<f64>], name: &str) {
        let (gamma, beta) = (self.get(&format!("{name}.weight")), self.get(&format!("{name}.bias")));
        for token in x {
            let mean = token.iter().sum::<f64>() / HIDDEN as f64;
            let variance = token.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / HIDDEN as f64;
            for (f, v) in token.iter_mut().enumerate() {
                *v = (*v - mean) / (variance + 1e-12).sqrt() * gamma[f] + beta[f];
            }
        }
    }

    fn linear(&self, x: &[Vec<f64>], name: &str) -> Vec<Vec<f64>> {
        let (weight, bias) = (self.get(&format!("{name}.weight")), self.get(&format!("{name}.bias")));
        x.iter()
            .map(|token| {
                bias.iter()
                    .zip(weight.chunks(token.len()))
                    .map(|(b, row)| b + row.iter().zip(token).map(|(w, x)| w * x).sum::<f64>())
                    .collect()
            })
            .collect()
    }

    fn embed(&self, tokens: &[u32]) -> Vec<f64> {
        let row = |table: &str, index: usize| {
            self.get(&format!("embeddings.{table}_embeddings.weight"))[index * HIDDEN..][..HIDDEN].to_vec()
        };
        let mut x: Vec<Vec<f64>> = tokens
            .iter()
            .enumerate()
            .map(|(position, &id)| {
                let tables = [row("word", id as usize), row("position", position), row("token_type", 0)];
                (0..HIDDEN).map(|f| tables.iter().map(|t| t[f]).sum()).collect()
            })
            .collect();
        self.norm(&mut x, "embeddings.LayerNorm");
        for layer in 0..LAYERS {
            let block = format!("encoder.layer.{layer}");
            let [q, k, v] =
                ["query", "key", "value"].map(|part| self.linear(&x, &format!("{block}.attention.self.{part}")));
            let size = HIDDEN / HEADS;
            let mut context = vec![vec![0.0; HIDDEN]; x.len()];
            for head in 0..HEADS {
                let features = head * size..(head + 1) * size;
                for i in 0..x.len() {
                    let weights: Vec<f64> = (0..x.len())
                        .map(|j| {
                            let dot: f64 = features.clone().map(|f| q[i][f] * k[j][f]).sum();
                            (dot / (size as f64).sqrt()).exp()
                        })
                        .collect();
                    let total: f64 = weights.iter().sum();
                    for f in features.clone() {
                        context[i][f] = (0..x.len()).map(|j| weights[j] / total * v[j][f]).sum();
                    }
                }
            }
            let mut attended = self.linear(&context, &format!("{block}.attention.output.dense"));
            add(&mut attended, &x);
            self.norm(&mut attended, &format!("{block}.attention.output.LayerNorm"));
            let mut wide = self.linear(&attended, &format!("{block}.intermediate.dense"));
            wide.iter_mut().flatten().for_each(|v| *v *= normal_distribution(*v));
            x = self.linear(&wide, &format!("{block}.output.dense"));
            add(&mut x, &attended);
            self.norm(&mut x, &format!("{block}.output.LayerNorm"));
        }
        let mean: Vec<f64> =
            (0..HIDDEN).map(|f| x.iter().map(|token| token[f]).sum::<f64>() / x.len() as f64).collect();
        let norm = mean.iter().map(|v| v * v).sum::<f64>().sqrt();
        mean.iter().map(|v| v / norm).collect()
    }
}

fn add(x: &mut [Vec<f64>], y: &[Vec<f64>]) {
    for (x, y) in x.iter_mut().zip(y) {
        x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
    }
}

/// P(normal variable <= x) by Simpson's rule from 0, so that it shares nothing with `math::erf`.
fn normal_distribution(x: f64) -> f64 {
    let density = |t: f64| (-t * t / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
    let steps = 200;
    let h = x / f64::from(steps);
    let inner: f64 = (1..steps).map(|i| density(f64::from(i) * h) * if i % 2 == 1 { 4.0 } else { 2.0 }).sum();
    0.5 + h / 3.0 * (density(0.0) + inner + density(x))
}

fn greatest_difference(embeddings: &[Vec<f32>], expected: &[Vec<f64>]) -> f64 {
    assert_eq!(embeddings.len(), expected.len());
    embeddings
        .iter()
        .flatten()
        .zip(expected.iter().flatten())
        .map(|(a, b)| (f64::from(*a) - b).abs())
        .fold(0.0, f64::max)
}

#[test]
fn embeds_as_the_naive_forward_pass() {
    let tensors = checkpoint();
    let embeddings = load(&tensors).embed(&batch()).unwrap();
    let expected: Vec<_> = batch().iter().map(|s| Naive(&tensors).embed(s)).collect();
    let difference = greatest_difference(&embeddings, &expected);
    assert!(difference < 2e-6, "greatest difference {difference}");
}

#[test]
fn half_precision_checkpoints_load_as_their_rounded_values() {
    type Round = fn(f32) -> f32;
    let rounds: [(Dtype, Round); 2] =
        [(Dtype::F16, |v| f16::from_f32(v).to_f32()), (Dtype::BF16, |v| bf16::from_f32(v).to_f32())];
    for (dtype, round) in rounds {
        let exact = checkpoint();
        let mut rounded = exact.clone();
        rounded.values_mut().for_each(|(_, values)| values.iter_mut().for_each(|v| *v = round(*v)));
        assert_eq!(
            try_load(&exact, dtype).unwrap().embed(&batch()).unwrap(),
            load(&rounded).embed(&batch()).unwrap(),
            "{dtype:?}"
        );
    }
}

#[test]
fn prefixed_and_tensorflow_names_load_alike() {
    let plain = checkpoint();
    let renamed: Checkpoint = plain
        .iter()
        .map(|(name, tensor)| {
            let name = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta");
            (format!("bert.{name}"), tensor.clone())
        })
        .collect();
    let (plain, renamed) = (load(&plain), load(&renamed));
    assert_eq!(plain.linear_names(), renamed.linear_names());
    assert_eq!(plain.embed(&batch()).unwrap(), renamed.embed(&batch()).unwrap());
}

#[test]
fn a_sentence_embeds_alike_alone_and_in_any_batch() {
    let model = load(&checkpoint());
    let batch = batch();
    let together = model.embed(&batch).unwrap();
    for (sentence, expected) in batch.iter().zip(&together) {
        let alone = model.embed(std::slice::from_ref(sentence)).unwrap();
        let expected: Vec<f64> = expected.iter().map(|&v| f64::from(v)).collect();
        assert!(greatest_difference(&alone, &[expected]) < 1e-6);
    }
    let many = MAX_BATCH_TOKENS / POSITIONS * 2;
    let repeated = model.embed(&vec![batch[6].clone(); many]).unwrap();
    assert_eq!(repeated.len(), many);
    let expected: Vec<f64> = together[6].iter().map(|&v| f64::from(v)).collect();
    assert!(greatest_difference(&repeated[many - 1..], &[expected]) < 1e-6);
    assert!(model.embed(&[]).unwrap().is_empty());
}

#[test]
fn a_long_sentence_keeps_its_first_tokens_and_its_last() {
    let model = load(&checkpoint());
    let long: Vec<u32> = (0..POSITIONS as u32 + 9).collect();
    let mut kept: Vec<u32> = (0..POSITIONS as u32 - 1).collect();
    kept.push(POSITIONS as u32 + 8);
    assert_eq!(model.embed(&[long]).unwrap(), model.embed(&[kept]).unwrap());
}

/// Twice the product of the dense operator.
struct Doubled(DenseLinear);

impl LinearOp for Doubled {
    fn n(&self) -> usize {
        self.0.n()
    }

    fn k(&self) -> usize {
        self.0.k()
    }

    fn forward(&self, x: &Activations, y: &mut Activations, epilogue: &Epilogue<'_>) -> Result<(), LinearError> {
        self.0.forward(x, y, &Epilogue::default())?;
        y.as_mut_slice().iter_mut().for_each(|v| *v *= 2.0);
        epilogue.apply(y);
        Ok(())
    }

    fn describe(&self) -> String {
        "doubled".into()
    }
}

#[test]
fn every_layer_can_be_replaced() {
    let tensors = checkpoint();
    let dense = load(&tensors);
    let names = dense.linear_names();
    assert_eq!(names.len(), 6 * LAYERS);
    for name in names {
        let weight = dense.weight(&name).unwrap();
        let op = Doubled(DenseLinear::new(weight.data.into(), weight.n, weight.k).unwrap());
        let mut replaced = dense.clone();
        replaced.replace(&name, Box::new(op)).unwrap();
        assert_eq!(replaced.operator(&name).unwrap().describe(), "doubled");
        assert_ne!(dense.operator(&name).unwrap().describe(), "doubled");

        let mut doubled = tensors.clone();
        let weight = doubled.get_mut(&format!("{name}.weight")).unwrap();
        weight.1.iter_mut().for_each(|v| *v *= 2.0);
        let expected: Vec<_> = batch().iter().map(|s| Naive(&doubled).embed(s)).collect();
        let difference = greatest_difference(&replaced.embed(&batch()).unwrap(), &expected);
        assert!(difference < 2e-6, "{name}: greatest difference {difference}");
    }
}

#[test]
fn replacement_checks_name_and_shape() {
    let mut model = load(&checkpoint());
    let op = || Box::new(DenseLinear::new(vec![0.0; 6].into(), 2, 3).unwrap());
    let error = error_of(model.replace("encoder.layer.9.output.dense", op()));
    assert!(matches!(error, ModelError::UnknownLinear { known, .. } if known.len() == 6 * LAYERS));
    let error = error_of(model.replace("encoder.layer.0.output.dense", op()));
    assert!(matches!(error, ModelError::OperatorShape { expected, got, .. }
            if expected == [HIDDEN, WIDE] && got == [2, 3]));
}

#[test]
fn operands_of_another_shape_are_errors() {
    let op = DenseLinear::new(vec![0.0; 6].into(), 2, 3).unwrap();
    let x = Activations::zeros(3, 4);
    let forward = |x: &Activations, mut y: Activations, epilogue: Epilogue<'_>| match op.forward(x, &mut y, &epilogue) {
        Err(LinearError::Shape { operand, .. }) => operand,
        other => panic!("{other:?}"),
    };
    let y = Activations::zeros(2, 4);
    let wrong = Activations::zeros(2, 5);
    assert_eq!(forward(&y, y.clone(), Epilogue::default()), "x");
    assert_eq!(forward(&x, wrong.clone(), Epilogue::default()), "y");
    let bias = Epilogue { bias: Some(&[1.0]), ..Epilogue::default() };
    assert_eq!(forward(&x, y.clone(), bias), "bias");
    let residual = Epilogue { residual: Some(&wrong), ..Epilogue::default() };
    assert_eq!(forward(&x, y, residual), "residual");
    assert!(matches!(
        DenseLinear::new(vec![0.0; 5].into(), 2, 3),
        Err(LinearError::Length { expected: [2, 3], got: 5 })
    ));
}

#[test]
fn tokens_that_cannot_be_embedded_are_errors() {
    let model = load(&checkpoint());
    let error = error_of(model.embed(&[vec![1], vec![]]));
    assert!(matches!(error, ModelError::EmptySentence { sentence: 1 }));
    let error = error_of(model.embed(&[vec![1], vec![3, VOCABULARY as u32]]));
    assert!(matches!(error, ModelError::TokenRange { sentence: 1, position: 1, got, vocab_size }
            if got as usize == VOCABULARY && vocab_size == VOCABULARY));
}

#[test]
fn tensors_that_do_not_fit_are_errors() {
    let name = "encoder.layer.1.output.dense.weight";
    let mut missing = checkpoint();
    missing.remove(name);
    let error = error_of(try_load(&missing, Dtype::F32));
    assert!(matches!(error, ModelError::MissingTensor { name: got, .. } if got == name));

    let mut shape = checkpoint();
    shape.get_mut(name).unwrap().0 = vec![WIDE, HIDDEN];
    let error = error_of(try_load(&shape, Dtype::F32));
    assert!(matches!(error, ModelError::TensorShape { expected, got, .. }
            if expected == [HIDDEN, WIDE] && got == [WIDE, HIDDEN]));

    let error = error_of(try_load(&checkpoint(), Dtype::F64));
    assert!(matches!(error, ModelError::TensorDtype { got, .. } if got == "F64"));

    for (name, bad, dtype) in [
        (name, f32::NAN, Dtype::F16),
        ("encoder.layer.0.output.LayerNorm.bias", f32::INFINITY, Dtype::BF16),
        ("embeddings.word_embeddings.weight", f32::NEG_INFINITY, Dtype::F32),
    ] {
        let mut spoiled = checkpoint();
        let (shape, values) = spoiled.get_mut(name).unwrap();
        let (last, at) = (values.len() - 1, shape.iter().map(|extent| extent - 1).collect::<Vec<_>>());
        values[last] = bad;
        let error = error_of(try_load(&spoiled, dtype));
        assert_eq!(
            error.to_string(),
            format!("tensor `{name}`: entry {at:?} is {bad}; expected finite numbers: mend the checkpoint")
        );
    }

    let error = error_of(try_load(&Checkpoint::new(), Dtype::F32));
    assert!(matches!(error, ModelError::MissingTensor { found, .. } if found == "no tensors"));
}

#[test]
fn a_file_cut_short_anywhere_is_an_error() {
    let path = Path::new("cut.safetensors");
    let whole = encode(&checkpoint(), Dtype::F32);
    let header = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap());
    for len in [0, 7, 8, 100, header as usize, whole.len() - 1] {
        let error = error_of(Weights::from_bytes(whole[..len].to_vec(), path).map(drop));
        let expected_by_header = match len {
            0..8 => 8,
            len if (len as u64) < header => header,
            _ => whole.len() as u64,
        };
        assert!(
            matches!(error, ModelError::FileLength { expected, got, .. }
                if expected == expected_by_header && got == len as u64),
            "{len} bytes: {error}"
        );
    }
    let error = error_of(Weights::from_bytes([&[9; 8][..], &whole].concat(), path).map(drop));
    assert!(matches!(error, ModelError::Safetensors { .. }));
}

#[test]
fn configs_that_cannot_run_are_errors() {
    let with = |field: &str, value: serde_json::Value| {
        let mut json = config_json();
        json[field] = value;
        BertConfig::from_json(&json.to_string(), Path::new("config.json"))
    };
    for (name, value) in [
        ("num_attention_heads", 5.into()),
        ("num_hidden_layers", 0.into()),
        ("vocab_size", u32::MAX.into()),
        ("layer_norm_eps", (-1.0).into()),
        ("hidden_act", "swish".into()),
        ("position_embedding_type", "relative_key".into()),
    ] {
        let error = error_of(with(name, value));
        assert!(matches!(error, ModelError::Config { field, .. } if field == name));
    }
    let error = error_of(with("hidden_size", "many".into()));
    assert!(matches!(error, ModelError::Json { .. }));
    let error = error_of(BertModel::load(Path::new("/no/such/model")));
    assert!(matches!(error, ModelError::Io { path, .. } if path.ends_with("config.json")));
}

/// Two sentences of all-MiniLM-L6-v2, with the first components of an f64 forward pass in NumPy: "The cat is asleep on
/// the warm windowsill." and "A kitten naps in a sunny spot by the window.".
#[test]
fn embeds_minilm_as_numpy_does() {
    let directory = std::env::var_os("FRACTAL_MINILM")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../weights/minilm"), PathBuf::from);
    if !directory.exists() {
        eprintln!("[SKIP] no model at {}: run examples/fetch_minilm.py or set FRACTAL_MINILM", directory.display());
        return;
    }
    let sentences = [
        vec![101, 1996, 4937, 2003, 6680, 2006, 1996, 4010, 3645, 8591, 1012, 102],
        vec![101, 1037, 18401, 18996, 2015, 1999, 1037, 11559, 3962, 2011, 1996, 3332, 1012, 102],
    ];
    let expected = [
        [
            0.1111947726692358,
            -0.026167318812302647,
            -0.03129161199839233,
            0.11797011700636156,
            -0.03830002525568386,
            0.020600704913308454,
            -0.004386048857120408,
            -0.01752410291481296,
        ],
        [
            0.05340914600830279,
            0.030879574408727142,
            -0.034911674368489604,
            0.09211299149849865,
            0.014337828802183627,
            0.02649606560522199,
            0.0591233737023801,
            -0.031439604081495154,
        ],
    ];
    let model = BertModel::load(&directory).unwrap();
    let embeddings = model.embed(&sentences).unwrap();
    for (embedding, expected) in embeddings.iter().zip(expected) {
        assert_eq!(embedding.len(), 384);
        let difference = greatest_difference(&[embedding[..8].to_vec()], &[expected.to_vec()]);
        assert!(difference < 1e-5, "greatest difference {difference}");
    }
    let cosine: f32 = embeddings[0].iter().zip(&embeddings[1]).map(|(a, b)| a * b).sum();
    assert!((f64::from(cosine) - 0.6442293760151).abs() < 1e-5, "cosine {cosine}");
}
