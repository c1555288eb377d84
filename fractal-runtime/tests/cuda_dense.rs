//! The dense baseline on a GPU, against f64. Skipped without a GPU or without cuBLASLt.

use fractal_dsl::DType;
use fractal_runtime::Tensor;
use fractal_runtime::cuda::testing::device_or_skip;
use fractal_runtime::cuda::{CudaError, DenseEpilogue, DenseGemm, DenseOperands, download_tensor, upload_tensor};

fn values(len: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

/// Y[n, m] of the stored values.
fn reference(w: &Tensor, x: &Tensor) -> Vec<f64> {
    let (n, k, m) = (w.rows(), w.columns(), x.columns());
    let (w, x) = (w.to_f32(), x.to_f32());
    let mut y = vec![0.0; n * m];
    for row in 0..n {
        for column in 0..k {
            let weight = f64::from(w[row * k + column]);
            for token in 0..m {
                y[row * m + token] += weight * f64::from(x[column * m + token]);
            }
        }
    }
    y
}

fn tanh_gelu(v: f64) -> f64 {
    0.5 * v * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (v + 0.044_715 * v.powi(3))).tanh())
}

#[test]
fn a_bias_and_gelu_are_fused_token_major() {
    let Some(device) = device_or_skip() else { return };
    let stream = device.stream().unwrap();
    for (dtype, limit) in [(DType::F32, 1e-3), (DType::F16, 1e-3), (DType::BF16, 6e-3)] {
        for shape @ [n, k, m] in [[64, 96, 128], [48, 80, 24], [200, 512, 344]] {
            let w = Tensor::from_f32(dtype, n, k, &values(n * k, 1)).unwrap();
            let x = Tensor::from_f32(dtype, k, m, &values(k * m, 2)).unwrap();
            let bias = Tensor::from_f32(dtype, n, 1, &values(n, 3)).unwrap();
            let plain = reference(&w, &x);
            let added = bias.to_f32();
            let expected: Vec<f64> = (0..n * m).map(|at| tanh_gelu(plain[at] + f64::from(added[at / m]))).collect();
            let bias = upload_tensor(&stream, &bias).unwrap();
            let mut dense = match DenseGemm::with_bias_gelu(&stream, dtype, shape, &bias) {
                Ok(dense) => dense,
                Err(error @ CudaError::NoCublasLt { .. }) => {
                    println!("[SKIP] {error}");
                    return;
                }
                Err(error) => panic!("{dtype} {shape:?}: {error}"),
            };
            let (w, x) = (upload_tensor(&stream, &w).unwrap(), upload_tensor(&stream, &x.transposed()).unwrap());
            let y = stream.zeros(n * m * dtype.bytes()).unwrap();
            let operands = DenseOperands { w: &w, x: &x, y: &y };
            dense.fastest(&stream, &[operands]).unwrap();
            stream.fill(&y, 0xff).unwrap();
            dense.launch(&stream, operands).unwrap();
            let found = download_tensor(&stream, &y, dtype, m, n).unwrap().transposed().to_f32();
            let greatest = expected.iter().fold(0.0f64, |greatest, v| greatest.max(v.abs()));
            for (at, (&found, &expected)) in found.iter().zip(&expected).enumerate() {
                let error = (f64::from(found) - expected).abs() / greatest;
                assert!(error <= limit, "{dtype} {shape:?}: [{at}] off by {error:.2e}");
            }
        }
    }
    let short = stream.zeros(4).unwrap();
    let error = DenseGemm::with_bias_gelu(&stream, DType::F16, [64, 64, 64], &short).unwrap_err();
    assert!(matches!(error, CudaError::Size { what: "dense bias", .. }), "{error}");
}

#[test]
fn every_type_shape_and_epilogue_agrees_with_f64() {
    let Some(device) = device_or_skip() else { return };
    let stream = device.stream().unwrap();
    for dtype in DType::ALL {
        // TF32 would be off by 5e-4 of the greatest value and more.
        let limit: f64 = match dtype {
            DType::F32 => 2e-6,
            DType::F16 => 1e-3,
            DType::BF16 => 6e-3,
        };
        for shape @ [n, k, m] in [[64, 96, 128], [48, 80, 24], [33, 70, 17], [256, 1024, 1], [200, 512, 344]] {
            let w = Tensor::from_f32(dtype, n, k, &values(n * k, 1)).unwrap();
            let x = Tensor::from_f32(dtype, k, m, &values(k * m, 2)).unwrap();
            let plain = reference(&w, &x);
            let (w, x) = (upload_tensor(&stream, &w).unwrap(), upload_tensor(&stream, &x).unwrap());
            for epilogue in [DenseEpilogue::None, DenseEpilogue::Relu, DenseEpilogue::Gelu] {
                let mut dense = match DenseGemm::new(&stream, dtype, shape, epilogue) {
                    Ok(dense) => dense,
                    Err(error @ CudaError::NoCublasLt { .. }) => {
                        println!("[SKIP] {error}");
                        return;
                    }
                    Err(error) => panic!("{dtype} {shape:?} {epilogue:?}: {error}"),
                };
                let expected: Vec<f64> = plain
                    .iter()
                    .map(|&v| match epilogue {
                        DenseEpilogue::None => v,
                        DenseEpilogue::Relu => v.max(0.0),
                        DenseEpilogue::Gelu => tanh_gelu(v),
                    })
                    .collect();
                let greatest = expected.iter().fold(0.0f64, |greatest, v| greatest.max(v.abs()));
                let poison = Tensor::from_f32(dtype, n, m, &vec![f32::NAN; n * m]).unwrap();
                let y = upload_tensor(&stream, &poison).unwrap();
                let operands = DenseOperands { w: &w, x: &x, y: &y };
                for chosen in ["first", "fastest", "captured"] {
                    match chosen {
                        "first" => dense.launch(&stream, operands).unwrap(),
                        "fastest" => {
                            let time = dense.fastest(&stream, &[operands]).unwrap();
                            assert!(time > 0.0 && time < 1e4, "{time}");
                            dense.launch(&stream, operands).unwrap();
                        }
                        _ => {
                            let graph = stream.capture(|stream| dense.launch(stream, operands)).unwrap();
                            // All bits set are NaN in every type.
                            stream.write(&y, &vec![0xffu8; y.bytes()]).unwrap();
                            graph.replay().unwrap();
                        }
                    }
                    let found = download_tensor(&stream, &y, dtype, n, m).unwrap().to_f32();
                    for (at, (&found, &expected)) in found.iter().zip(&expected).enumerate() {
                        let error = (f64::from(found) - expected).abs() / greatest;
                        // GELU's tanh may be the approximate instruction.
                        let limit: f64 = if epilogue == DenseEpilogue::Gelu { f64::max(limit, 1e-3) } else { limit };
                        assert!(error <= limit, "{dtype} {shape:?} {epilogue:?} {chosen}: [{at}] off by {error:.2e}");
                    }
                }
            }
        }
    }
}

#[test]
fn short_operands_are_refused() {
    let Some(device) = device_or_skip() else { return };
    let stream = device.stream().unwrap();
    let dense = match DenseGemm::new(&stream, DType::F16, [64, 64, 64], DenseEpilogue::None) {
        Ok(dense) => dense,
        Err(error) => return println!("[SKIP] {error}"),
    };
    let (long, short) = (stream.zeros(64 * 64 * 2).unwrap(), stream.zeros(64 * 64).unwrap());
    let error = dense.launch(&stream, DenseOperands { w: &long, x: &short, y: &long }).unwrap_err();
    assert_eq!(error, CudaError::Size { what: "dense X", expected: 64 * 64, found: 64 * 64 * 2 });
}
