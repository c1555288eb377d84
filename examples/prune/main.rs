//! dev
mod retrieval;
#[path = "../common/tokens.rs"]
mod tokens;
use fractal::{DType, Tensor, pattern::Named};
use fractal_runtime::model::{BertModel, NewWeights};
use fractal_runtime::{Method, SecondOrder};
use std::path::Path;
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let env = |name: &str, usual: f64| std::env::var(name).ok().and_then(|v| v.parse::<f64>().ok()).unwrap_or(usual);
    let weights = Path::new("weights/minilm");
    let tokenizer = tokens::load(None, weights)?;
    let packages = Path::new("weights/packages");
    let test = retrieval::Task::read(packages, "test", &tokenizer, env("TEST", 1500.0) as usize)?;
    let calibration =
        retrieval::Task::read(packages, "calibration", &tokenizer, env("CAL", 400.0) as usize)?.sentences();
    println!(
        "calibration tokens {} test tokens {}",
        calibration.iter().map(Vec::len).sum::<usize>(),
        test.sentences().iter().map(Vec::len).sum::<usize>()
    );
    let dense = BertModel::load(weights)?;
    let t = Instant::now();
    let embeddings = test.run(&dense)?;
    let found = embeddings.find(&embeddings);
    println!("dense recall {:.4} mrr {:.4} in {:.1} s", found.recall(), found.mrr(), t.elapsed().as_secs_f64());
    for arg in std::env::args().skip(1) {
        let (method_name, rest) = arg.split_once('=').unwrap();
        let (name, keep) = rest.split_once('@').unwrap();
        let keep: f64 = keep.parse()?;
        let named: Named = name.parse()?;
        let method = match method_name {
            "mag" => Method::Magnitude,
            "act" => Method::ActivationAware,
            _ => Method::SecondOrder(SecondOrder {
                damping: env("DAMP", 0.01),
                stages: env("STAGES", 6.0) as usize,
                update: method_name != "mask",
                ..SecondOrder::default()
            }),
        };
        let t = Instant::now();
        let (mut errors, mut count) = (0.0, 0);
        let model = dense.calibrate(&calibration, |layer, weight, statistics| {
            let pattern = named.pattern(weight.n, weight.k, keep)?;
            let tensor = Tensor::from_f32(DType::F32, weight.n, weight.k, weight.data)?;
            let r = method.prune(&pattern, &tensor, statistics)?;
            if std::env::var("LAYERS").is_ok() {
                println!("  {layer} error {:.4} least {:.4} kept {:.3}", r.error, r.least, 1.0 - r.pruned.sparsity());
            }
            errors += r.error;
            count += 1;
            Ok(Some(NewWeights { weights: r.pruned.dense().to_f32(), bias: r.bias }))
        })?;
        let time = t.elapsed().as_secs_f64();
        let own = test.run(&model)?.find(&embeddings);
        let (loss, half) = own.loss(&found);
        println!(
            "{arg}: recall {:.4} loss {:.2} +- {:.2} mrr {:.4} cosine {:.4} error {:.4} in {time:.1} s",
            own.recall(),
            loss * 100.0,
            half * 100.0,
            own.mrr(),
            own.cosine,
            errors / count as f64
        );
    }
    Ok(())
}
