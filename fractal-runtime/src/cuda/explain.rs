//! A kernel as it was compiled -> what was really emitted, in words: its machine code against its name.

use super::{Arch, KernelInfo};
use crate::error::Error;
use fractal_dsl::Intrinsic;
use fractal_sched::KernelRequest;
use fractal_sched::codegen::KernelConfig;

/// The machine's name of an intrinsic.
fn opcode(intrinsic: Intrinsic) -> &'static str {
    match intrinsic {
        Intrinsic::Ffma => "FFMA",
        Intrinsic::MmaSync | Intrinsic::MmaSp => "HMMA",
        Intrinsic::Wgmma | Intrinsic::WgmmaSp => "HGMMA",
    }
}

/// Whether the machine code multiplies with the instruction that the kernel is named for.
///
/// # Errors
/// [`Error::OtherInstruction`]. Opcodes are known up to sm_90: later machine code is not judged.
pub(super) fn check_instruction(config: &KernelConfig, info: &KernelInfo, arch: Arch) -> Result<(), Error> {
    if arch.major > 9 {
        return Ok(());
    }
    let found = info.multiplications;
    let right = match config.intrinsic {
        Intrinsic::Ffma => found.ffma > 0 && found.mma + found.wgmma == 0,
        Intrinsic::MmaSync | Intrinsic::MmaSp => found.mma > 0 && found.wgmma == 0,
        Intrinsic::Wgmma | Intrinsic::WgmmaSp => found.wgmma > 0 && found.mma == 0,
    };
    if right {
        return Ok(());
    }
    let found = format!("{} FFMA, {} HMMA, {} HGMMA", found.ffma, found.mma, found.wgmma);
    Err(Error::OtherInstruction { kernel: config.name(), instruction: opcode(config.intrinsic), found })
}

/// The kernel in words: instruction, what was asked for and what runs, what it uses.
pub(super) fn explain(
    config: &KernelConfig,
    asked: &KernelRequest,
    info: &KernelInfo,
    blocks: u32,
    waste: f64,
) -> String {
    let found = info.multiplications;
    let spills = if info.spills() { format!("{} B spilled", info.spill_store_bytes) } else { "no spills".into() };
    format!(
        "{}\n  instruction {}: {} FFMA, {} HMMA, {} HGMMA in its machine code\n  asked for   {asked}\n  runs        {}\n  \
         uses        {} registers, {} B of shared memory, {spills}; {blocks} blocks of {} threads\n  \
         stores      {waste:.2} of what the pattern keeps\n",
        config.name(),
        config.intrinsic,
        found.ffma,
        found.mma,
        found.wgmma,
        KernelRequest::of_config(config),
        info.registers,
        config.shared_bytes(),
        config.threads(),
    )
}
