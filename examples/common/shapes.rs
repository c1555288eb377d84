//! Layers by their sizes: `n,k,m`, and lists of them.

use std::str::FromStr;

/// One layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Output features.
    pub n: usize,
    /// Input features.
    pub k: usize,
    /// Tokens.
    pub m: usize,
}

/// `Vec` has a meaning of its own to clap.
#[derive(Clone, Debug)]
pub struct ShapeList(pub Vec<Shape>);

const PAPER: &[[usize; 3]] = &[
    [1024, 1024, 1024],
    [4096, 1024, 1024],
    [1024, 4096, 1024],
    [768, 768, 512],
    [3072, 768, 512],
    [768, 3072, 512],
    [128, 576, 784],
    [64, 576, 3136],
    [256, 1152, 3136],
    [4096, 4096, 4096],
    [16384, 4096, 4096],
    [4096, 16384, 4096],
];

const LARGE: &[[usize; 3]] =
    &[[4096, 4096, 4096], [16384, 4096, 4096], [4096, 16384, 4096], [4096, 11008, 4096], [8192, 8192, 8192]];

const MID: &[[usize; 3]] = &[[4096, 1024, 8192], [1024, 4096, 8192], [3072, 768, 4096]];

/// Layers of language models that make one token for each of a few users.
const DECODE: &[[usize; 3]] = &[
    [11008, 4096, 1],
    [11008, 4096, 4],
    [11008, 4096, 8],
    [11008, 4096, 16],
    [11008, 4096, 32],
    [4096, 14336, 1],
    [4096, 14336, 4],
    [4096, 14336, 8],
    [4096, 14336, 16],
    [4096, 14336, 32],
];

/// The most elements of one operand: 4 GiB of f32.
const MOST_ELEMENTS: usize = 1 << 30;

impl FromStr for Shape {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Shape, String> {
        let expected = "expected three whole numbers n,k,m of at least 1, such as 4096,1024,1024";
        let parts: Vec<&str> = text.split(',').map(str::trim).collect();
        let &[n, k, m] = &parts[..] else {
            let s = if parts.len() == 1 { "" } else { "s" };
            return Err(format!("{expected}; found {} number{s}", parts.len()));
        };
        let size = |name: &str, text: &str| match text.parse::<usize>() {
            Ok(0) => Err(format!("{name} is 0; {expected}")),
            Ok(size) => Ok(size),
            Err(_) => Err(format!("{name} is `{text}`; {expected}")),
        };
        let shape = Shape { n: size("n", n)?, k: size("k", k)?, m: size("m", m)? };
        for (operand, a, b) in [("weight", shape.n, shape.k), ("input", shape.k, shape.m), ("output", shape.n, shape.m)]
        {
            if a.checked_mul(b).is_none_or(|elements| elements > MOST_ELEMENTS) {
                return Err(format!("the {operand} has {a} x {b} elements; expected at most 2^30: take smaller sizes"));
            }
        }
        Ok(shape)
    }
}

/// A list by its name.
///
/// # Errors
/// The names that there are.
pub fn shape_list(name: &str) -> std::result::Result<ShapeList, String> {
    let shapes = match name {
        "paper" => PAPER,
        "large" => LARGE,
        "mid" => MID,
        "decode" => DECODE,
        _ => return Err("expected `paper`, `large`, `mid` or `decode`; give single shapes as --shape n,k,m".into()),
    };
    Ok(ShapeList(shapes.iter().map(|&[n, k, m]| Shape { n, k, m }).collect()))
}
