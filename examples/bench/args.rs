//! Command line -> [`Plan`]: what is to be measured, every pattern applied to every shape once before anything runs.

use std::path::PathBuf;

use clap::Parser;
use fractal::pattern::{Named, PatternError, PatternSpec};
use fractal::{DType, Gemm, Program};

use crate::Result;
pub use crate::shapes::Shape;
use crate::shapes::{ShapeList, shape_list};

/// Time pruned layers against dense ones: every pattern side by side with the fastest dense GEMM, every result checked.
#[derive(Parser)]
#[command(name = "bench", version)]
pub struct Args {
    /// A layer as n,k,m: output features, input features, tokens; may be given several times
    #[arg(long, value_name = "N,K,M", allow_hyphen_values = true)]
    shape: Vec<Shape>,
    /// A list of shapes: `paper` (layers of BERT and ResNet, and large ones), `large`, `mid` or `decode` (1 to 32 tokens);
    /// may be given several times
    #[arg(long, value_name = "LIST", value_parser = shape_list)]
    shapes: Vec<ShapeList>,
    /// Storage types of weight and activations: f32, f16, bf16
    #[arg(long, value_delimiter = ',', value_parser = dtype, default_value = "f32")]
    dtype: Vec<DType>,
    /// Shares of the weights to remove, each from 0 to below 1 [default: 0.75, or what a pattern fixes itself]
    #[arg(long, value_delimiter = ',', allow_hyphen_values = true, value_parser = sparsity)]
    sparsity: Vec<f64>,
    /// `all`, names such as `tw:128,bw:128x64,2:4`, or one pattern as DSL text; may be given several times. `+1%` behind a
    /// name restores that part of the weights on top of the pattern
    /// [default: tw:128]
    #[arg(long, value_name = "NAMES|TEXT", value_parser = pattern_list)]
    pattern: Vec<PatternList>,
    /// Statements that ask for a kernel, on axes n, m, k and operands w, x, for every named pattern:
    /// `tile(m, 128); tensorize(n, m, k, mma_sync)`
    #[arg(long, value_name = "TEXT")]
    schedule: Option<String>,
    /// Where the layers run: cpu, cuda, auto
    #[arg(long, default_value = "auto")]
    pub device: String,
    /// What is done to each element before it is stored, on both sides: none or bias-gelu
    #[arg(long, default_value = "none", value_parser = ending)]
    pub epilogue: Ending,
    /// Also write the results to this file, as a JSON list of one object a row; after each row
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Below each row of a GPU, what bounds it and what its kernel uses; and the CPU's time for a call. The JSON always has
    /// the former
    #[arg(long)]
    pub profile: bool,
    /// Most rounds a row; one that takes long ends after a few seconds, but never before 3 rounds
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub rounds: u32,
    /// Threads of the CPU [default: all cores]
    #[arg(long, value_parser = threads)]
    pub threads: Option<usize>,
    /// Patterns prepared at a time [default: as many as cores, if memory allows]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub jobs: Option<u32>,
    /// Least time of one measurement in milliseconds: short calls are repeated until they fill it
    #[arg(long, value_name = "MS", default_value_t = 10.0, allow_hyphen_values = true, value_parser = milliseconds)]
    pub min_time: f64,
}

/// What follows the multiplication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    None,
    /// A bias for each feature, then GELU.
    BiasGelu,
}

impl Ending {
    /// What the table and the JSON call it.
    pub fn name(self) -> &'static str {
        match self {
            Ending::None => "none",
            Ending::BiasGelu => "bias-gelu",
        }
    }
}

/// What one `--pattern` names.
#[derive(Clone, Debug, PartialEq)]
struct PatternList(Vec<Asked>);

#[derive(Clone, Debug, PartialEq)]
enum Asked {
    All,
    Named(PatternSpec),
    Text(String),
}

/// The patterns of `all`, in sizes that suit large layers.
pub const ALL: &[&str] = &[
    "ew",
    "vw:16",
    "2:4",
    "perm-2:4",
    "1:4",
    "bw:32x32",
    "bw:128x64",
    "bw-global:32x32",
    "tw:64",
    "tw:128",
    "tw-global:128",
    "tw2:64",
    "tvw:128",
    "vnm:64",
    "perm-vnm:64",
    "shfl-bw:32x32",
    "shfl-vw:64",
    "hybrid:128x64/32x16",
];

fn ending(name: &str) -> std::result::Result<Ending, String> {
    let endings = [Ending::None, Ending::BiasGelu];
    endings.into_iter().find(|ending| ending.name() == name).ok_or_else(|| "expected none or bias-gelu".into())
}

fn dtype(name: &str) -> std::result::Result<DType, String> {
    DType::from_name(name.trim()).ok_or_else(|| "expected f32, f16 or bf16".into())
}

fn sparsity(text: &str) -> std::result::Result<f64, String> {
    match text.trim().parse::<f64>() {
        Ok(sparsity) if (0.0..1.0).contains(&sparsity) => Ok(sparsity),
        Ok(percent) if (1.0..100.0).contains(&percent) => {
            Err(format!("expected a share from 0 to below 1; for {percent} % give {}", percent / 100.0))
        }
        _ => Err("expected a share from 0 to below 1, such as 0.75".into()),
    }
}

fn milliseconds(text: &str) -> std::result::Result<f64, String> {
    match text.parse::<f64>() {
        Ok(time) if (0.0..=10_000.0).contains(&time) => Ok(time),
        _ => Err("expected milliseconds from 0 to 10000, such as 10".into()),
    }
}

fn threads(text: &str) -> std::result::Result<usize, String> {
    let cores = cores();
    match text.parse::<usize>() {
        Ok(threads) if (1..=cores).contains(&threads) => Ok(threads),
        _ => Err(format!("expected a number from 1 to {cores}, the cores of this machine")),
    }
}

/// Cores that this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get())
}

fn pattern_list(text: &str) -> std::result::Result<PatternList, String> {
    let one = |part: &str| match part.trim() {
        "all" => Ok(Asked::All),
        name => name.parse().map(Asked::Named),
    };
    match text.split(',').map(one).collect::<std::result::Result<Vec<_>, PatternError>>() {
        Ok(list) => Ok(PatternList(list)),
        // Names have neither parentheses nor blanks nor `^`; DSL text has one of them.
        Err(_) if text.trim().contains(['(', ' ', '^']) => Ok(PatternList(vec![Asked::Text(text.trim().into())])),
        Err(error) => Err(format!("{error}; or `all`, or DSL text such as `n0:32 k0:64^16 n1:32 k1:16`")),
    }
}

/// Everything that is to be measured.
pub struct Plan {
    /// Shapes and types, each measured with every pattern that has a case for it.
    pub layers: Vec<PlannedLayer>,
}

/// One shape and type with its patterns.
pub struct PlannedLayer {
    /// The shape.
    pub shape: Shape,
    /// Storage type.
    pub dtype: DType,
    /// The rows of the table.
    pub cases: Vec<Case>,
}

impl PlannedLayer {
    /// Whether its weight is that of another layer.
    pub fn same_weight(&self, other: &PlannedLayer) -> bool {
        (self.shape.n, self.shape.k, self.dtype) == (other.shape.n, other.shape.k, other.dtype)
    }
}

/// One row of the table.
#[derive(Clone)]
pub struct Case {
    /// The pattern's name or text.
    pub name: String,
    /// The sparsity asked for; `None` where the pattern has its own.
    pub asked: Option<f64>,
    /// Part of the weights restored on top of the pattern.
    pub residue: f64,
    /// The product with this pattern and what is asked of its kernel, or why it cannot be had at this sparsity.
    pub gemm: std::result::Result<Gemm, String>,
}

impl Args {
    /// Applies every pattern to every shape.
    ///
    /// # Errors
    /// No shape, a pattern that was asked for by name and cannot be had, DSL text that does not check.
    pub fn plan(&self) -> Result<Plan> {
        let listed = self.shapes.iter().flat_map(|list| list.0.iter().copied());
        let shapes = unique(self.shape.iter().copied().chain(listed));
        if shapes.is_empty() {
            return Err("no shape: pass --shape n,k,m or --shapes paper".into());
        }
        let asked: Vec<Asked> = match &self.pattern[..] {
            [] => vec![Asked::Named(Named::TileWise { rows: 128, global: false }.into())],
            given => given.iter().flat_map(|list| list.0.iter().cloned()).collect(),
        };
        let mut layers = Vec::new();
        for &shape in &shapes {
            for dtype in unique(self.dtype.iter().copied()) {
                let mut cases = Vec::new();
                for asked in &asked {
                    self.add_cases(asked, shape, dtype, &mut cases)?;
                }
                // What `all` and a name, or two lists, have in common is measured once.
                let mut seen = Vec::new();
                cases.retain(|case| {
                    let key = (case.name.clone(), case.asked);
                    let new = !seen.contains(&key);
                    seen.push(key);
                    new
                });
                layers.push(PlannedLayer { shape, dtype, cases });
            }
        }
        Ok(Plan { layers })
    }

    fn add_cases(&self, asked: &Asked, shape: Shape, dtype: DType, cases: &mut Vec<Case>) -> Result<()> {
        let Shape { n, k, .. } = shape;
        let given = unique(self.sparsity.iter().copied());
        let sparsities = if given.is_empty() { &[0.75][..] } else { &given };
        let wrong =
            |what: &str, text: &str, error: &dyn std::fmt::Display| format!("{what} `{text}` for {n} x {k}: {error}");
        let case =
            |spec: PatternSpec, sparsity: f64| case(spec, Some(sparsity), shape, dtype, self.schedule.as_deref());
        match asked {
            Asked::All => {
                for &sparsity in sparsities {
                    for name in ALL {
                        cases.push(case(name.parse()?, sparsity));
                    }
                }
            }
            Asked::Named(named) => {
                let fixed = named.fixed_keep().filter(|_| self.sparsity.is_empty());
                let own = fixed.map(|keep| vec![1.0 - keep]);
                for &sparsity in own.as_deref().unwrap_or(sparsities) {
                    let case = case(*named, sparsity);
                    if let Err(reason) = &case.gemm {
                        return Err(format!("pattern {named} at sparsity {sparsity}: {reason}").into());
                    }
                    cases.push(case);
                }
            }
            Asked::Text(text) => {
                let program = Program::for_pattern_text(text, n, k, dtype)
                    .map_err(|e| format!("pattern `{text}` for {n} x {k}:\n{e}"))?;
                let gemm = Gemm::of(&program, n, k).map_err(|error| wrong("pattern", text, &error))?;
                cases.push(Case { name: text.clone(), asked: None, residue: 0.0, gemm: Ok(gemm) });
            }
        }
        Ok(())
    }
}

/// Each value once, where it is first.
fn unique<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    values.fold(Vec::new(), |mut kept, value| {
        if !kept.contains(&value) {
            kept.push(value);
        }
        kept
    })
}

fn case(named: PatternSpec, asked: Option<f64>, shape: Shape, dtype: DType, schedule: Option<&str>) -> Case {
    let Shape { n, k, .. } = shape;
    let keep = 1.0 - asked.unwrap_or(0.0);
    let pattern = match named.fixed_keep() {
        Some(fixed) if (fixed - keep).abs() > 1e-6 => {
            let own = 1.0 - fixed;
            Err(format!("the name fixes {:.4} % sparsity; pass --sparsity {own}", own * 100.0).replace(".0000 %", " %"))
        }
        _ => named.pattern(n, k, keep).map_err(|e| e.to_string()),
    };
    let gemm = pattern.map(|pattern| Gemm::new(pattern, dtype)).and_then(|gemm| match schedule {
        None => Ok(gemm),
        Some(schedule) => gemm.with_schedule(schedule).map_err(|error| error.to_string()),
    });
    let name = schedule.map_or(named.to_string(), |schedule| format!("{named}; {schedule}"));
    Case { name, asked, residue: named.share(), gemm }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape_error(text: &str) -> String {
        text.parse::<Shape>().unwrap_err()
    }

    fn plan(line: &str) -> Result<Plan> {
        Args::try_parse_from(std::iter::once("bench").chain(line.split_whitespace()))?.plan()
    }

    #[test]
    fn shapes_say_what_is_wrong_with_them() {
        let expected = "expected three whole numbers n,k,m of at least 1, such as 4096,1024,1024";
        assert_eq!(" 3, 4 ,5".parse(), Ok(Shape { n: 3, k: 4, m: 5 }));
        assert_eq!(shape_error("0,1,2"), format!("n is 0; {expected}"));
        assert_eq!(shape_error("1,2"), format!("{expected}; found 2 numbers"));
        assert_eq!(shape_error(""), format!("{expected}; found 1 number"));
        assert_eq!(shape_error("1,2,3,4"), format!("{expected}; found 4 numbers"));
        assert_eq!(shape_error("-1,2,3"), format!("n is `-1`; {expected}"));
        assert_eq!(shape_error("1,2.5,3"), format!("k is `2.5`; {expected}"));
        assert_eq!(shape_error("1,2,99999999999999999999999"), format!("m is `99999999999999999999999`; {expected}"));
        let too_large = shape_error("1,18446744073709551615,18446744073709551615");
        assert!(too_large.contains("expected at most 2^30"), "{too_large}");
        assert!(shape_error("100000,100000,1").starts_with("the weight has 100000 x 100000 elements"));
        assert!(shape_error("1,100000,100000").starts_with("the input has"));
        assert!(shape_error("100000,1,100000").starts_with("the output has"));
    }

    #[test]
    fn a_negative_shape_is_a_shape_and_not_an_option() {
        let error = plan("--shape -1,2,3").err().unwrap().to_string();
        assert!(error.contains("n is `-1`"), "{error}");
        let error = plan("--shape 64,64,8 --sparsity -0.5").err().unwrap().to_string();
        assert!(error.contains("from 0 to below 1"), "{error}");
    }

    #[test]
    fn sparsities_and_types_say_what_they_expect() {
        assert_eq!(sparsity("0.75"), Ok(0.75));
        assert_eq!(sparsity("75").unwrap_err(), "expected a share from 0 to below 1; for 75 % give 0.75");
        for bad in ["1", "-0.1", "nan", "inf", "half", ""] {
            assert!(sparsity(bad).is_err(), "{bad}");
        }
        assert_eq!(dtype("f64").unwrap_err(), "expected f32, f16 or bf16");
        assert!(shape_list("small").is_err());
        assert_eq!(shape_list("decode").unwrap().0.len(), 10);
        assert_eq!(ending("bias-gelu"), Ok(Ending::BiasGelu));
        assert_eq!(ending("gelu").unwrap_err(), "expected none or bias-gelu");
        assert!(threads("0").is_err());
        assert!(milliseconds("-1").is_err());
    }

    #[test]
    fn names_come_in_lists_and_text_alone() {
        let count = |text| pattern_list(text).unwrap().0.len();
        assert_eq!(count("tw:128,bw:128x64, 2:4"), 3);
        assert_eq!(count("tw:128+1%,2:4+0.5%"), 2);
        assert_eq!(count("let (no, ni) = split(n, 8); skip(k, per = no, keep = 25%)"), 1);
        assert_eq!(count("n0:32 k0:64^16 n1:32 k1:16"), 1);
        let error = pattern_list("tw:0").unwrap_err();
        assert!(error.contains("`tw:0` is no pattern: expected one of dense, ew"), "{error}");
        assert!(ALL.iter().all(|name| count(name) == 1));
    }

    #[test]
    fn lists_multiply_and_stay_in_order() {
        let plan =
            plan("--shape 64,64,8 --shape 32,64,8 --dtype f32,bf16 --sparsity 0.5,0.75 --pattern tw:16,ew").unwrap();
        let layers: Vec<_> = plan.layers.iter().map(|l| (l.shape.n, l.dtype, l.cases.len())).collect();
        use DType::{BF16, F32};
        assert_eq!(layers, [(64, F32, 4), (64, BF16, 4), (32, F32, 4), (32, BF16, 4)]);
        assert_eq!(super::Args::parse_from(["bench", "--shapes", "paper"]).plan().unwrap().layers.len(), 12);
    }

    #[test]
    fn what_is_given_twice_counts_once() {
        let plan = plan(
            "--shape 64,64,8 --shape 64,64,8 --dtype f32,f32 --sparsity 0.5,0.75,0.5 --pattern tw:16,ew --pattern ew",
        );
        let plan = plan.unwrap();
        let cases: Vec<_> = plan.layers[0].cases.iter().map(|c| (c.name.as_str(), c.asked.unwrap())).collect();
        assert_eq!(plan.layers.len(), 1);
        assert_eq!(cases, [("tw:16", 0.5), ("tw:16", 0.75), ("ew", 0.5), ("ew", 0.75)]);
    }

    #[test]
    fn a_fixed_sparsity_is_a_row_under_all_and_an_error_by_name() {
        let all = plan("--shape 64,64,8 --pattern all").unwrap();
        let row = all.layers[0].cases.iter().find(|case| case.name == "2:4").unwrap();
        assert_eq!(row.gemm, Err("the name fixes 50 % sparsity; pass --sparsity 0.5".into()));
        let error = plan("--shape 64,64,8 --pattern 2:4 --sparsity 0.75").err().unwrap().to_string();
        assert_eq!(error, "pattern 2:4 at sparsity 0.75: the name fixes 50 % sparsity; pass --sparsity 0.5");
        let own = plan("--shape 64,64,8 --pattern 2:4").unwrap();
        assert_eq!(own.layers[0].cases[0].asked, Some(0.5));
        assert!(plan("--shape 64,64,8 --pattern tvw:16 --sparsity 0.25").is_err());
        assert!(plan("--shape 64,64,8 --pattern all --sparsity 0.25").is_ok());
        let own = plan("--shape 64,64,8 --pattern 2:4+1%").unwrap();
        let case = &own.layers[0].cases[0];
        assert_eq!((case.name.as_str(), case.asked, case.residue), ("2:4+1%", Some(0.49), 0.01));
    }

    #[test]
    fn no_shape_is_an_error_with_its_mend() {
        assert_eq!(plan("").err().unwrap().to_string(), "no shape: pass --shape n,k,m or --shapes paper");
    }
}
