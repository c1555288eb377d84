//! Prints what a pattern is lowered and generated to: the CUDA kernel for a GPU, or LoopIr. Needs no GPU.
//!
//! ```sh
//! cargo run --example emit -- --pattern tw:128 --shape 4096,1024,8192 --dtype f16 --epilogue bias,gelu
//! ```

use clap::Parser;
use fractal::cuda::{Gpu, KernelPlan, TableShape};
use fractal::dsl::EpilogueOp;
use fractal::pattern::PatternSpec;
use fractal::sched::{Form, Schedule, lower};
use fractal::{DType, Gemm, Magnitude, Program, Tensor, prune_with_residue};

/// Prints the CUDA source of a sparse GEMM that a GPU of the size of an H200 would run, or its LoopIr.
#[derive(Parser)]
struct Args {
    /// A pattern by name (`tw:128`, `2:4`, `tw:128+1%`, …), as a nest, or as the statements of a schedule.
    #[arg(long, default_value = "tw:128")]
    pattern: String,
    /// Part of the weight that is dropped, where the pattern does not say [default: 0.75].
    #[arg(long, allow_hyphen_values = true)]
    sparsity: Option<f64>,
    /// n,k,m: output features, input features, tokens.
    #[arg(long, value_delimiter = ',', allow_hyphen_values = true, default_values_t = [1024, 1024, 1024])]
    shape: Vec<usize>,
    /// f32, f16 or bf16.
    #[arg(long, default_value = "f16")]
    dtype: String,
    /// Steps after the multiplication: bias, residual, relu, gelu, silu.
    #[arg(long, value_delimiter = ',')]
    epilogue: Vec<String>,
    /// Compute capability of the GPU: 75, 80, 90, …
    #[arg(long, default_value_t = 90)]
    sm: u32,
    /// Print LoopIr instead.
    #[arg(long)]
    loop_ir: bool,
}

fn main() {
    if let Err(error) = run(&Args::parse()) {
        eprintln!("error: {error}");
        std::process::exit(1);
    }
}

fn run(args: &Args) -> Result<(), Box<dyn std::error::Error>> {
    let &[n, k, m] = args.shape.as_slice() else {
        return Err(format!("--shape: expected n,k,m, found {} numbers", args.shape.len()).into());
    };
    if [n, k, m].contains(&0) || n.saturating_mul(k) > 1 << 28 || m > 1 << 30 {
        let expected = "n, k, m of at least 1, a weight of at most 2^28 elements and at most 2^30 tokens";
        return Err(format!("--shape: expected {expected}, found {n},{k},{m}").into());
    }
    if !(60..=130).contains(&args.sm) {
        return Err(format!("--sm: expected a compute capability such as 80, 90 or 100, found {}", args.sm).into());
    }
    if let Some(sparsity) = args.sparsity.filter(|sparsity| !(0.0..1.0).contains(sparsity)) {
        return Err(format!("--sparsity: expected a share from 0 to below 1, found {sparsity}").into());
    }
    let keep = args.sparsity.map(|sparsity| 1.0 - sparsity);
    let dtype = DType::from_name(&args.dtype)
        .ok_or_else(|| format!("--dtype: expected f32, f16 or bf16, found `{}`", args.dtype))?;
    let epilogue = args.epilogue.iter().map(|step| match step.as_str() {
        "bias" => Ok(EpilogueOp::Bias("bias".into())),
        "residual" => Ok(EpilogueOp::Residual("residual".into())),
        "relu" => Ok(EpilogueOp::Relu),
        "gelu" => Ok(EpilogueOp::Gelu),
        "silu" => Ok(EpilogueOp::Silu),
        other => Err(format!("--epilogue: expected bias, residual, relu, gelu or silu, found `{other}`")),
    });
    let epilogue = epilogue.collect::<Result<Vec<_>, _>>()?;
    let spec = args.pattern.parse::<PatternSpec>();
    let residue = spec.as_ref().map_or(0.0, PatternSpec::share);
    let gemm = match spec {
        // A pattern that fixes its sparsity refuses another one.
        Ok(spec) => Gemm::new(spec.pattern(n, k, keep.or(spec.fixed_keep()).unwrap_or(0.25))?, dtype),
        Err(unknown) if !args.pattern.contains([' ', '(']) => return Err(unknown.into()),
        Err(_) => Gemm::of(&Program::for_pattern_text(&args.pattern, n, k, dtype)?, n, k)?,
    };
    let gemm = gemm.with_epilogue(&epilogue);
    let pattern = gemm.pattern().clone();
    if args.loop_ir {
        let form = if pattern.gpu_violations().is_empty() { Form::Condensed } else { Form::Scalar };
        print!("{}", lower(&pattern, &Schedule { form, m_tile: 128, epilogue: gemm.steps().to_vec() })?);
        return Ok(());
    }
    let plan = KernelPlan::new(&gemm, args.sm)?;
    // The kernel depends on how the kept weights lie: those of a random weight, pruned by magnitude.
    let mut state = 1u32;
    let mut random = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    let weight = Tensor::from_f32(dtype, n, k, &(0..n * k).map(|_| random()).collect::<Vec<_>>())?;
    let (least, tables) = plan.lay_out(&prune_with_residue(&pattern, &weight, &Magnitude, residue)?)?;
    let config = plan.choose(&TableShape::new(&least, &tables, [n, k]), m, Gpu::H200)?;
    print!("{}", plan.source(&config)?.text);
    Ok(())
}
