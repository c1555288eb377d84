//! A compiled image: bytes of NVRTC and its log -> the kernels in it, what each one uses, and its parameters.
//!
//! Names and parameters are read from the ELF file: the symbol table, and the `.nv.info.<kernel>` sections, a list of
//! (format, attribute, size, value) records. Registers, shared memory and spills are read from the log of
//! `--ptxas-options=-v`, since the file has no record of spills.

use super::error::CudaError;

/// Machine code for one architecture, ready to be loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cubin {
    bytes: Vec<u8>,
    log: String,
    kernels: Vec<KernelInfo>,
}

/// What one kernel uses, as the compiler reported it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KernelInfo {
    /// The name it is loaded by.
    pub name: String,
    /// Registers of a thread.
    pub registers: u32,
    /// Static shared memory of a block, bytes.
    pub shared_bytes: u32,
    /// Stack frame of a thread, bytes.
    pub stack_bytes: u32,
    /// Bytes that a thread spills to local memory.
    pub spill_store_bytes: u32,
    /// Bytes that a thread loads back.
    pub spill_load_bytes: u32,
    /// Bytes of each parameter, in order.
    pub parameters: Vec<u32>,
    /// The multiplications in its machine code.
    pub multiplications: Multiplications,
}

/// Instructions of each unit that multiplies, as they stand in the machine code: what was really emitted.
///
/// The opcode is the low 12 bits of an instruction's 16 bytes, from sm_75 to sm_90 at least (read off `nvdisasm -hex`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Multiplications {
    /// `FFMA`: f32 on CUDA cores.
    pub ffma: usize,
    /// `HMMA`: `mma.sync` and `mma.sp` of 16-bit types.
    pub mma: usize,
    /// `HGMMA`: `wgmma` of 16-bit types, dense or 2 of 4.
    pub wgmma: usize,
}

impl Multiplications {
    fn of(code: Bytes) -> Multiplications {
        let mut found = Multiplications::default();
        for instruction in code.0.chunks_exact(16) {
            let opcode = u16::from_le_bytes([instruction[0], instruction[1]]) & 0xfff;
            match opcode {
                // With registers, constants or immediate values as operands.
                0x223 | 0x423 | 0x623 | 0x823 | 0xa23 | 0xc23 => found.ffma += 1,
                0x23c => found.mma += 1,
                0x9f0 => found.wgmma += 1,
                _ => {}
            }
        }
        found
    }
}

impl KernelInfo {
    /// Whether registers were spilled to memory.
    pub fn spills(&self) -> bool {
        self.spill_store_bytes > 0 || self.spill_load_bytes > 0
    }
}

impl std::fmt::Display for KernelInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{}: {} registers, {} B shared, {} B stack, {} B spilled, {} B reloaded",
            self.name,
            self.registers,
            self.shared_bytes,
            self.stack_bytes,
            self.spill_store_bytes,
            self.spill_load_bytes
        )
    }
}

impl Cubin {
    /// Reads an image and the log of its compilation.
    ///
    /// # Errors
    /// [`CudaError::BadCubin`] if the bytes are not an ELF file with at least one kernel.
    pub fn new(bytes: Vec<u8>, log: String) -> Result<Cubin, CudaError> {
        let bad = |reason: &str| CudaError::BadCubin { reason: reason.to_owned() };
        let mut kernels = read_kernels(&bytes).ok_or_else(|| bad("it is no complete 64-bit ELF file"))?;
        if kernels.is_empty() {
            return Err(bad("it holds no kernel"));
        }
        add_usage(&mut kernels, &log);
        Ok(Cubin { bytes, log, kernels })
    }

    /// The ELF file.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// What the compiler said: warnings, and the resource usage of each kernel.
    pub fn log(&self) -> &str {
        &self.log
    }

    /// The kernels, by name.
    pub fn kernels(&self) -> &[KernelInfo] {
        &self.kernels
    }

    /// One kernel.
    ///
    /// # Errors
    /// [`CudaError::NoKernel`] names the kernels there are.
    pub fn kernel(&self, name: &str) -> Result<&KernelInfo, CudaError> {
        self.kernels.iter().find(|kernel| kernel.name == name).ok_or_else(|| CudaError::NoKernel {
            name: name.to_owned(),
            present: self.kernels.iter().map(|kernel| kernel.name.clone()).collect(),
        })
    }
}

/// Bounds-checked little-endian reads.
#[derive(Clone, Copy)]
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn part(self, at: u64, len: u64) -> Option<Bytes<'a>> {
        let at = usize::try_from(at).ok()?;
        let end = at.checked_add(usize::try_from(len).ok()?)?;
        Some(Bytes(self.0.get(at..end)?))
    }
    fn array<const N: usize>(self, at: u64) -> Option<[u8; N]> {
        self.part(at, N as u64)?.0.try_into().ok()
    }
    fn u8(self, at: u64) -> Option<u8> {
        self.array::<1>(at).map(|[byte]| byte)
    }
    fn u16(self, at: u64) -> Option<u16> {
        self.array(at).map(u16::from_le_bytes)
    }
    fn u32(self, at: u64) -> Option<u32> {
        self.array(at).map(u32::from_le_bytes)
    }
    fn u64(self, at: u64) -> Option<u64> {
        self.array(at).map(u64::from_le_bytes)
    }
    /// The zero-terminated string at an offset.
    fn text(self, at: u32) -> Option<&'a str> {
        let tail = self.0.get(at as usize..)?;
        std::str::from_utf8(&tail[..tail.iter().position(|&byte| byte == 0)?]).ok()
    }
}

struct Section<'a> {
    name: u32,
    link: u32,
    kind: u32,
    body: Bytes<'a>,
}

const SYMBOL_TABLE: u32 = 2;
const NO_BITS: u32 = 8;
const FUNCTION: u8 = 2;
/// The flag of a kernel in a symbol's `other` field: `STO_CUDA_ENTRY`.
const ENTRY: u8 = 0x10;

/// The kernels of an image with their parameters; `None` if it is cut off or not an ELF file.
fn read_kernels(bytes: &[u8]) -> Option<Vec<KernelInfo>> {
    let file = Bytes(bytes);
    // Magic, 64 bits, little-endian.
    if file.array::<6>(0)? != [0x7f, b'E', b'L', b'F', 2, 1] {
        return None;
    }
    let table = file.u64(40)?;
    let entry = u64::from(file.u16(58)?);
    let count = u64::from(file.u16(60)?);
    let names = u64::from(file.u16(62)?);
    let section = |index: u64| {
        let header = file.part(table.checked_add(index.checked_mul(entry)?)?, 64)?;
        let kind = header.u32(4)?;
        let len = if kind == NO_BITS { 0 } else { header.u64(32)? };
        let at = if kind == NO_BITS { 0 } else { header.u64(24)? };
        Some(Section { name: header.u32(0)?, link: header.u32(40)?, kind, body: file.part(at, len)? })
    };
    let sections: Vec<Section> = (0..count).map(section).collect::<Option<_>>()?;
    let section_names = sections.get(names as usize)?.body;
    let mut kernels = Vec::new();
    for table in sections.iter().filter(|section| section.kind == SYMBOL_TABLE) {
        let names = sections.get(table.link as usize)?.body;
        for symbol in table.body.0.chunks_exact(24).map(Bytes) {
            if symbol.u8(4)? & 0xf == FUNCTION && symbol.u8(5)? & ENTRY != 0 {
                kernels.push(KernelInfo { name: names.text(symbol.u32(0)?)?.to_owned(), ..KernelInfo::default() });
            }
        }
    }
    kernels.sort_by(|a, b| a.name.cmp(&b.name));
    for kernel in &mut kernels {
        let (info, code) = (format!(".nv.info.{}", kernel.name), format!(".text.{}", kernel.name));
        for section in &sections {
            match section_names.text(section.name)? {
                name if name == info => kernel.parameters = parameters(section.body)?,
                name if name == code => kernel.multiplications = Multiplications::of(section.body),
                _ => {}
            }
        }
    }
    Some(kernels)
}

/// Parameter sizes out of one `.nv.info.<kernel>` section.
fn parameters(info: Bytes) -> Option<Vec<u32>> {
    /// A record whose value is as many bytes as its last two header bytes say; the others keep their value in there.
    const SIZED: u8 = 4;
    /// `EIATTR_KPARAM_INFO`: index (u32), ordinal (u16), offset (u16), and the size from bit 18 of a u32 on.
    const PARAMETER: u8 = 0x17;
    let mut found: Vec<(u16, u32)> = Vec::new();
    let mut at = 0;
    while at + 4 <= info.0.len() as u64 {
        let (format, attribute) = (info.u8(at)?, info.u8(at + 1)?);
        let len = if format == SIZED { u64::from(info.u16(at + 2)?) } else { 0 };
        if format == SIZED && attribute == PARAMETER {
            let value = info.part(at + 4, len)?;
            found.push((value.u16(4)?, value.u32(8)? >> 18));
        }
        at += 4 + len;
    }
    found.sort_unstable();
    Some(found.into_iter().map(|(_, size)| size).collect())
}

/// Adds what the verbose log says of each kernel.
fn add_usage(kernels: &mut [KernelInfo], log: &str) {
    let mut current = None;
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            let name = rest.split('\'').next().unwrap_or_default();
            current = kernels.iter().position(|kernel| kernel.name == name);
        }
        let Some(kernel) = current.and_then(|index| kernels.get_mut(index)) else { continue };
        let set = |to: &mut u32, unit: &str| {
            if let Some(number) = number_before(line, unit) {
                *to = number;
            }
        };
        set(&mut kernel.registers, " registers");
        set(&mut kernel.stack_bytes, " bytes stack frame");
        set(&mut kernel.spill_store_bytes, " bytes spill stores");
        set(&mut kernel.spill_load_bytes, " bytes spill loads");
        set(&mut kernel.shared_bytes, " bytes smem");
    }
}

fn number_before(line: &str, unit: &str) -> Option<u32> {
    let head = line.split_once(unit)?.0;
    head[head.rfind(|c: char| !c.is_ascii_digit()).map_or(0, |at| at + 1)..].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'spill' for 'sm_90a'
ptxas info    : Function properties for spill
ptxas         .     1224 bytes stack frame, 1868 bytes spill stores, 2020 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 1224 bytes cumulative stack size
ptxas info    : Compiling entry function 'axpy' for 'sm_90a'
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers, used 1 barriers, 256 bytes smem
";

    #[test]
    fn usage_is_read_from_the_log() {
        let named = |name: &str| KernelInfo { name: name.into(), ..KernelInfo::default() };
        let mut kernels = vec![named("axpy"), named("spill")];
        add_usage(&mut kernels, LOG);
        assert_eq!(kernels[0].to_string(), "axpy: 12 registers, 256 B shared, 0 B stack, 0 B spilled, 0 B reloaded");
        assert_eq!(
            kernels[1].to_string(),
            "spill: 32 registers, 0 B shared, 1224 B stack, 1868 B spilled, 2020 B reloaded"
        );
        assert!(kernels[1].spills() && !kernels[0].spills());
    }

    #[test]
    fn bytes_that_are_no_image_are_an_error() {
        for bytes in [vec![], vec![0; 10], b"\x7fELF\x02\x01".to_vec(), vec![0xff; 4096]] {
            assert!(matches!(Cubin::new(bytes, String::new()), Err(CudaError::BadCubin { .. })));
        }
    }

    #[test]
    fn kernels_and_parameters_are_read_from_the_file() {
        let cubin = crate::cuda::testing::empty_cubin("gemm", LOG);
        let gemm = KernelInfo { name: "gemm".into(), parameters: vec![8], ..KernelInfo::default() };
        assert_eq!(cubin.kernels(), [gemm]);
        let error = cubin.kernel("gem").unwrap_err();
        assert_eq!(error, CudaError::NoKernel { name: "gem".into(), present: vec!["gemm".into()] });
    }

    #[test]
    fn an_image_that_is_cut_off_is_an_error() {
        let whole = crate::cuda::testing::empty_cubin("gemm", "").bytes().to_vec();
        for len in 0..whole.len() {
            assert!(Cubin::new(whole[..len].to_vec(), String::new()).is_err(), "{len} of {} bytes", whole.len());
        }
    }

    proptest::proptest! {
        #[test]
        fn damaged_images_never_panic(mut bytes in proptest::collection::vec(0u8.., 64..512)) {
            bytes[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1]);
            let _ = Cubin::new(bytes, String::new());
        }
    }
}
