//! What code is compiled for and by: GPU architectures and CUDA versions.

use std::fmt;
use std::str::FromStr;

/// A GPU architecture, `sm_80` or `sm_90a`.
///
/// ```
/// use fractal_runtime::cuda::Arch;
///
/// let hopper: Arch = "sm_90a".parse()?;
/// assert_eq!(hopper, Arch { major: 9, minor: 0, specific: true });
/// assert_eq!(hopper.to_string(), "sm_90a");
/// assert!(hopper.has(Arch::AMPERE));
/// # Ok::<(), String>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Arch {
    /// Compute capability before the point.
    pub major: u32,
    /// Compute capability after the point.
    pub minor: u32,
    /// With the instructions of this architecture alone (the `a` of `sm_90a`: `wgmma`, `setmaxnreg`). Such code runs on
    /// no other architecture.
    pub specific: bool,
}

impl Arch {
    /// The first architecture with `mma.sync` on bf16, `mma.sp` and `cp.async`.
    pub const AMPERE: Arch = Arch { major: 8, minor: 0, specific: false };
    /// The architecture of `wgmma`.
    pub const HOPPER: Arch = Arch { major: 9, minor: 0, specific: true };
    /// The architecture after Hopper's, for data centers.
    pub const BLACKWELL: Arch = Arch { major: 10, minor: 0, specific: true };

    /// The fullest target of a GPU with this compute capability: architecture-specific from 9.0 on.
    pub fn of_capability(major: u32, minor: u32) -> Arch {
        Arch { major, minor, specific: major >= 9 }
    }

    /// Whether a GPU of this architecture runs code that was compiled for `needed` or for an earlier one; code for an
    /// architecture-specific target runs on that architecture only.
    pub fn has(self, needed: Arch) -> bool {
        if needed.specific {
            (self.major, self.minor) == (needed.major, needed.minor)
        } else {
            (self.major, self.minor) >= (needed.major, needed.minor)
        }
    }

    /// The number NVRTC lists an architecture under: 90 for `sm_90a`.
    pub(crate) fn number(self) -> u32 {
        self.major * 10 + self.minor
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sm_{}{}{}", self.major, self.minor, if self.specific { "a" } else { "" })
    }
}

impl FromStr for Arch {
    type Err = String;

    fn from_str(text: &str) -> Result<Arch, String> {
        let wrong = || format!("`{text}` is no GPU architecture; expected one like sm_80 or sm_90a");
        let rest = text.strip_prefix("sm_").ok_or_else(wrong)?;
        let (digits, specific) = match rest.strip_suffix('a') {
            Some(digits) => (digits, true),
            None => (rest, false),
        };
        if !(2..=3).contains(&digits.len()) || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return Err(wrong());
        }
        let number: u32 = digits.parse().map_err(|_| wrong())?;
        Ok(Arch { major: number / 10, minor: number % 10, specific })
    }
}

/// A CUDA version, `13.0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// Before the point. Machine code of one major version runs on every driver of the same major version.
    pub major: u32,
    /// After the point.
    pub minor: u32,
}

impl Version {
    /// From the driver's packed number: 13010 is 13.1.
    pub(crate) fn of_packed(packed: i32) -> Version {
        let packed = u32::try_from(packed).unwrap_or(0);
        Version { major: packed / 1000, minor: packed % 1000 / 10 }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn architectures_print_and_parse_back() {
        for text in ["sm_75", "sm_80", "sm_86", "sm_90", "sm_90a", "sm_100a", "sm_121"] {
            assert_eq!(text.parse::<Arch>().unwrap().to_string(), text);
        }
        for text in ["", "sm_", "sm_9", "90a", "sm_90b", "sm_9000", "sm_-9", "compute_90"] {
            assert!(text.parse::<Arch>().unwrap_err().contains("expected one like"), "{text}");
        }
    }

    #[test]
    fn specific_code_stays_on_its_architecture() {
        let ada = Arch { major: 8, minor: 9, specific: false };
        assert!(ada.has(Arch::AMPERE));
        assert!(!ada.has(Arch::HOPPER));
        assert!(Arch::of_capability(9, 0).has(Arch::HOPPER));
        assert!(!Arch::of_capability(10, 0).has(Arch::HOPPER));
        assert!(!Arch::of_capability(7, 5).has(Arch::AMPERE));
    }

    #[test]
    fn the_drivers_packed_version_is_read() {
        assert_eq!(Version::of_packed(13010), Version { major: 13, minor: 1 });
        assert_eq!(Version::of_packed(12080).to_string(), "12.8");
    }
}
