//! Compiling without a GPU: machine code for three architectures, what it uses, and errors that say what to do.

use std::process::{Command, Stdio};

use fractal_runtime::cuda::testing::compiler_or_skip;
use fractal_runtime::cuda::{Arch, Compiler, CudaDevice, CudaError, KernelInfo, Options, Source, Version};

/// One warp multiplies a 16x16 tile by a 16x8 tile of bf16 on the tensor cores.
const MMA: &str = r#"
#include <cuda_bf16.h>
#include "fragment.cuh"

extern "C" __global__ void mma_tile(const __nv_bfloat16* a, const __nv_bfloat16* b, float* c, int k) {
    __shared__ __nv_bfloat16 stage[16 * 16];
    for (int i = threadIdx.x; i < 16 * 16; i += 32) stage[i] = a[i];
    __syncthreads();
    float acc[4] = {0, 0, 0, 0};
    for (int i = 0; i < k; i += 16) mma_16x8x16(acc, stage, b + i * 8, threadIdx.x);
    for (int i = 0; i < 4; ++i) c[threadIdx.x * 4 + i] = acc[i];
}
"#;

const FRAGMENT: &str = r#"
__device__ __forceinline__ void mma_16x8x16(float (&d)[4], const __nv_bfloat16* a, const __nv_bfloat16* b, int lane) {
    const unsigned* x = reinterpret_cast<const unsigned*>(a) + lane * 4;
    const unsigned* y = reinterpret_cast<const unsigned*>(b) + lane * 2;
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
}
"#;

/// A structure by value, a tensor map, and instructions of sm_90a alone.
const HOPPER: &str = r#"
struct alignas(64) TensorMap { char bytes[128]; };
struct Plan { int tiles; short rows; };

extern "C" __global__ void __launch_bounds__(128, 1)
hopper(const __grid_constant__ TensorMap map, Plan plan, float* y, unsigned char flag) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    y[threadIdx.x] = map.bytes[threadIdx.x] + plan.tiles + flag;
}
"#;

/// More live values than the registers that are left to it.
const SPILLS: &str = r#"
extern "C" __global__ void __launch_bounds__(256, 8) spills(const float* x, float* y, int n) {
    float r[128];
    for (int i = 0; i < 128; ++i) r[i] = x[i * n + threadIdx.x];
    for (int k = 0; k < n; ++k) {
        for (int i = 0; i < 128; ++i) r[i] = r[i] * r[(i + 7) % 128] + k;
        __syncthreads();
    }
    for (int i = 0; i < 128; ++i) y[i * n + threadIdx.x] = r[i];
}
"#;

fn only_kernel(compiler: &Compiler, source: &Source, arch: Arch) -> KernelInfo {
    let cubin = compiler.compile(source, arch, &Options::default()).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(cubin.kernels().len(), 1);
    cubin.kernels()[0].clone()
}

#[test]
fn a_tensor_core_kernel_compiles_for_three_architectures() {
    let Some(compiler) = compiler_or_skip() else { return };
    if compiler.include().is_none() {
        println!("[SKIP] no CUDA headers beside {}", compiler.library().display());
        return;
    }
    let source = Source::new("mma_tile", MMA).header("fragment.cuh", FRAGMENT);
    for arch in [Arch::AMPERE, Arch::HOPPER, Arch::BLACKWELL] {
        if !compiler.known_archs().contains(&(arch.major * 10 + arch.minor)) {
            println!("[SKIP] NVRTC {} does not know {arch}", compiler.version());
            continue;
        }
        let kernel = only_kernel(&compiler, &source, arch);
        println!("{arch}: {kernel}");
        assert_eq!(kernel.name, "mma_tile");
        assert_eq!(kernel.parameters, [8, 8, 8, 4]);
        assert_eq!(kernel.shared_bytes, 512);
        assert!((10..=64).contains(&kernel.registers), "{kernel}");
        assert!(!kernel.spills(), "{kernel}");
    }
}

#[test]
fn structures_and_tensor_maps_are_parameters() {
    let Some(compiler) = compiler_or_skip() else { return };
    let kernel = only_kernel(&compiler, &Source::new("hopper", HOPPER), Arch::HOPPER);
    assert_eq!(kernel.parameters, [128, 8, 8, 1]);
    let plain = Arch { specific: false, ..Arch::HOPPER };
    let error = compiler.compile(&Source::new("hopper", HOPPER), plain, &Options::default()).unwrap_err();
    assert!(matches!(error, CudaError::Compile { .. }), "{error}");
}

#[test]
fn spills_are_reported() {
    let Some(compiler) = compiler_or_skip() else { return };
    let kernel = only_kernel(&compiler, &Source::new("spills", SPILLS), Arch::HOPPER);
    assert!(kernel.spills() && kernel.stack_bytes > 0, "{kernel}");
    assert_eq!(kernel.registers, 32);
}

#[test]
fn options_reach_the_compiler() {
    let Some(compiler) = compiler_or_skip() else { return };
    let source = Source::new("k", "extern \"C\" __global__ void k(int* x) { *x = VALUE; }");
    let with = |flags: &[&str]| Options {
        defines: vec![("VALUE".into(), "7".into())],
        line_info: true,
        fast_math: true,
        flags: flags.iter().map(|flag| flag.to_string()).collect(),
    };
    assert!(compiler.compile(&source, Arch::AMPERE, &with(&["--maxrregcount=32"])).is_ok());
    let error = compiler.compile(&source, Arch::AMPERE, &with(&["--no-such-option"])).unwrap_err();
    assert!(error.to_string().contains("no-such-option"), "{error}");
}

#[test]
fn a_source_that_does_not_compile_is_kept_and_its_path_told() {
    let Some(compiler) = compiler_or_skip() else { return };
    let source = Source::new("broken<f16>", "extern \"C\" __global__ void broken() { undeclared = 1; }");
    let error = compiler.compile(&source, Arch::HOPPER, &Options::default()).unwrap_err();
    let text = error.to_string();
    let CudaError::Compile { name, arch, log, source_path } = error else { panic!("{text}") };
    assert_eq!((name.as_str(), arch), ("broken<f16>", Arch::HOPPER));
    assert!(log.contains("\"undeclared\" is undefined"), "{log}");
    let path = source_path.expect("a folder can be written");
    assert!(text.contains(path.to_str().unwrap()), "{text}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), source.text);
    let kept = std::fs::read_to_string(path.with_file_name("nvrtc.log")).unwrap();
    assert!(kept.contains("--gpu-architecture=sm_90a") && kept.contains("undeclared"), "{kept}");
    std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
}

#[test]
fn what_nvrtc_cannot_do_is_an_error() {
    let Some(compiler) = compiler_or_skip() else { return };
    let compile = |text: &str, arch: &str| {
        compiler.compile(&Source::new("k", text), arch.parse().unwrap(), &Options::default()).unwrap_err()
    };
    let error = compile("", "sm_999");
    assert!(matches!(&error, CudaError::NvrtcLacksArch { known, .. } if known.contains(&80)), "{error}");
    assert!(error.to_string().contains("help: install a newer NVRTC"), "{error}");
    assert!(matches!(compile("__device__ int x;", "sm_80"), CudaError::BadCubin { .. }));
    assert!(matches!(compile("a\0b", "sm_80"), CudaError::Compile { .. }));
}

#[test]
fn threads_compile_at_the_same_time() {
    let Some(compiler) = compiler_or_skip() else { return };
    std::thread::scope(|scope| {
        for index in 0..4 {
            let compiler = &compiler;
            scope.spawn(move || {
                let name = format!("k{index}");
                let text = format!("extern \"C\" __global__ void {name}(int* x) {{ *x = {index}; }}");
                assert_eq!(only_kernel(compiler, &Source::new(&name, text), Arch::HOPPER).name, name);
            });
        }
    });
}

#[test]
fn a_driver_of_an_older_cuda_is_told_before_anything_is_compiled() {
    let Some(compiler) = compiler_or_skip() else { return };
    let newest = compiler.version();
    assert_eq!(Compiler::for_driver(newest).unwrap().version(), newest);
    let old = Version { major: 11, minor: 8 };
    // A machine may have an NVRTC of that age too.
    if let Err(error) = Compiler::for_driver(old) {
        assert!(matches!(error, CudaError::DriverTooOld { driver, .. } if driver == old), "{error}");
        assert!(error.to_string().contains("help: update the driver, or install an NVRTC of CUDA 11"), "{error}");
    }
}

/// The environment of a process cannot be changed safely while other tests run, so a child reads another one.
fn child(test: &str, nvrtc: &str) -> bool {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env("FRACTAL_NVRTC", nvrtc)
        .env("FRACTAL_TEST_CHILD", "1")
        .env_remove("FRACTAL_REQUIRE_CUDA")
        .env_remove("FRACTAL_REQUIRE_NVRTC")
        .stdout(Stdio::null())
        .status()
        .unwrap()
        .success()
}

fn is_child() -> bool {
    std::env::var_os("FRACTAL_TEST_CHILD").is_some()
}

#[test]
fn a_missing_nvrtc_is_an_error_that_says_where_it_was_looked_for() {
    assert!(child("child_without_nvrtc", "/nowhere"));
}

#[test]
fn child_without_nvrtc() {
    if !is_child() {
        return;
    }
    let error = Compiler::new().unwrap_err();
    assert_eq!(error, CudaError::NoNvrtc { looked: vec!["/nowhere (FRACTAL_NVRTC)".into()] });
    assert!(
        error.to_string().contains("help: install the CUDA toolkit, or `pip install nvidia-cuda-nvrtc`"),
        "{error}"
    );
    assert_eq!(compiler_or_skip().map(|compiler| compiler.version()), None);
}

#[test]
fn a_library_that_is_no_nvrtc_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("libnvrtc.so.13"), "no library").unwrap();
    assert!(child("child_with_a_broken_nvrtc", folder.path().to_str().unwrap()));
}

#[test]
fn child_with_a_broken_nvrtc() {
    if !is_child() {
        return;
    }
    let error = Compiler::new().unwrap_err();
    assert!(
        matches!(&error, CudaError::NvrtcUnusable { library, .. } if library.ends_with("libnvrtc.so.13")),
        "{error}"
    );
}

#[test]
fn a_missing_gpu_is_an_error_that_says_what_to_do() {
    match CudaDevice::open(1000).unwrap_err() {
        error @ (CudaError::NoDriver { .. } | CudaError::DriverFails { .. } | CudaError::NoDevice { .. }) => {
            assert!(error.to_string().contains("\n  help: "), "{error}");
        }
        error => panic!("{error}"),
    }
}
