//! Collects samples; the rest follows.
use fractal::cuda::CudaDevice;
use fractal::runtime::tune::calibrate::{Plan, collect};
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let gpu = CudaDevice::open(0)?;
    let numbers = |t: &str| t.split('/').map(|v| v.parse().unwrap()).collect::<Vec<usize>>();
    let shapes = args[2].split(',').map(|t| { let v = numbers(t); [v[0], v[1], v[2]] }).collect();
    let patterns = args[3].split(',').map(|t| t.parse().unwrap()).collect();
    let plan = Plan { shapes, patterns, keeps: vec![0.5, 0.25, 0.0625], heights: vec![64], dtype: fractal::DType::ALL.into_iter().find(|d| d.name() == args[4]).unwrap() };
    let start = std::time::Instant::now();
    let samples = collect(&gpu, &plan, &mut |what| eprintln!("{:6.1} {what}", start.elapsed().as_secs_f64()))?;
    std::fs::write(&args[1], serde_json::to_string(&samples)?)?;
    eprintln!("{} samples in {:.1} s", samples.len(), start.elapsed().as_secs_f64());
    Ok(())
}
