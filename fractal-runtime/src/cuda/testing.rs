//! For tests: a GPU or a compiler, or the line that says why the test was skipped.

use super::{Compiler, CudaDevice, CudaError};

/// The first GPU. Without one: prints `[SKIP]`, or panics if `FRACTAL_REQUIRE_CUDA=1`.
#[track_caller]
pub fn device_or_skip() -> Option<CudaDevice> {
    or_skip("CUDA device", "FRACTAL_REQUIRE_CUDA", CudaDevice::open(0))
}

/// An NVRTC. Without one: prints `[SKIP]`, or panics if `FRACTAL_REQUIRE_NVRTC=1` or `FRACTAL_REQUIRE_CUDA=1`.
#[track_caller]
pub fn compiler_or_skip() -> Option<Compiler> {
    let variable = if required("FRACTAL_REQUIRE_CUDA") { "FRACTAL_REQUIRE_CUDA" } else { "FRACTAL_REQUIRE_NVRTC" };
    or_skip("NVRTC", variable, Compiler::new())
}

fn required(variable: &str) -> bool {
    std::env::var_os(variable).is_some_and(|value| value == "1")
}

#[track_caller]
fn or_skip<T>(what: &str, variable: &str, found: Result<T, CudaError>) -> Option<T> {
    match found {
        Ok(found) => Some(found),
        Err(error) if required(variable) => panic!("{variable}=1, but there is no {what}: {error}"),
        Err(error) => {
            println!("[SKIP] no {what}: {error}");
            None
        }
    }
}
