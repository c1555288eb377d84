//! For tests: a GPU or a compiler, or the line that says why the test was skipped.

use super::{Compiler, Cubin, CudaDevice, CudaError};

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

/// An image that passes for a compiled one: an ELF file with one kernel without code. It cannot be loaded on a GPU.
pub fn empty_cubin(kernel: &str, log: &str) -> Cubin {
    let info = format!(".nv.info.{kernel}");
    // One parameter: `EIATTR_KPARAM_INFO` of ordinal 0, 8 bytes.
    let parameter = [4, 0x17, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8 << 2, 0];
    let section_names = format!("\0.shstrtab\0.strtab\0.symtab\0{info}\0");
    let symbol_names = format!("\0{kernel}\0");
    let mut symbols = vec![0u8; 24];
    // The name's offset, a global function, the flag of a kernel, and no section, address or size.
    symbols.extend_from_slice(&[1, 0, 0, 0, 0x12, 0x10]);
    symbols.resize(48, 0);

    let mut file = vec![0u8; 64];
    file[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1]);
    let mut headers = vec![0u8; 64];
    let mut add = |name: &str, kind: u32, link: u32, body: &[u8]| {
        let at = section_names.find(name).unwrap_or_default() as u32;
        let mut header = [0u8; 64];
        header[0..4].copy_from_slice(&at.to_le_bytes());
        header[4..8].copy_from_slice(&kind.to_le_bytes());
        header[24..32].copy_from_slice(&(file.len() as u64).to_le_bytes());
        header[32..40].copy_from_slice(&(body.len() as u64).to_le_bytes());
        header[40..44].copy_from_slice(&link.to_le_bytes());
        headers.extend_from_slice(&header);
        file.extend_from_slice(body);
    };
    add(".shstrtab", 3, 0, section_names.as_bytes());
    add(".strtab", 3, 0, symbol_names.as_bytes());
    add(".symtab", 2, 2, &symbols);
    add(&info, 0x7000_0000, 0, &parameter);
    let table = file.len() as u64;
    file[40..48].copy_from_slice(&table.to_le_bytes());
    file[58..60].copy_from_slice(&64u16.to_le_bytes());
    file[60..62].copy_from_slice(&5u16.to_le_bytes());
    file[62..64].copy_from_slice(&1u16.to_le_bytes());
    file.extend_from_slice(&headers);
    Cubin::new(file, log.to_owned()).expect("the image is whole")
}
