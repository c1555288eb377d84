//! A checked program: what a sparse GEMM computes, in which shapes and types, and how it is scheduled.

use crate::directive::Directive;
use crate::{DType, Diagnostic, Diagnostics};
use serde::{Deserialize, Serialize};
use std::fmt;

/// One of the three dimensions of a GEMM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Dimension {
    /// Tokens: columns of the activations.
    M,
    /// Output features: rows of the weight.
    N,
    /// Input features: columns of the weight, the reduction.
    K,
}

impl Dimension {
    /// The three in the order of a header.
    pub const ALL: [Dimension; 3] = [Dimension::M, Dimension::N, Dimension::K];

    /// The name in DSL text.
    pub fn name(self) -> &'static str {
        match self {
            Dimension::M => "M",
            Dimension::N => "N",
            Dimension::K => "K",
        }
    }

    pub(crate) fn from_name(name: &str) -> Option<Dimension> {
        Dimension::ALL.into_iter().find(|dimension| dimension.name() == name)
    }

    pub(crate) fn meaning(self) -> &'static str {
        match self {
            Dimension::M => "tokens",
            Dimension::N => "output features",
            Dimension::K => "input features",
        }
    }
}

impl fmt::Display for Dimension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// When the size of a dimension is known.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dim {
    /// Given with the weights or with each call.
    #[default]
    Runtime,
    /// This many.
    Fixed(usize),
    /// A Rust constant expression, which the macro's expansion or [`Program::bind`] gives its value.
    Const(String),
}

impl Dim {
    /// The size, where it is known.
    pub fn fixed(&self) -> Option<usize> {
        if let Dim::Fixed(size) = self { Some(*size) } else { None }
    }
}

impl From<usize> for Dim {
    fn from(size: usize) -> Dim {
        Dim::Fixed(size)
    }
}

/// How a dense matrix of features and tokens lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layout {
    /// `[features, M]`: the tokens of one feature are contiguous.
    FeatureMajor,
    /// `[M, features]`: the features of one token are contiguous.
    TokenMajor,
}

/// One matrix or vector.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Operand {
    /// Its name.
    pub name: String,
    /// The type of its elements in memory.
    pub dtype: DType,
    /// Its dimensions, slowest first.
    pub shape: Vec<Dimension>,
}

impl Operand {
    /// The layout: token-major where M comes first.
    pub fn layout(&self) -> Layout {
        if self.shape.first() == Some(&Dimension::M) { Layout::TokenMajor } else { Layout::FeatureMajor }
    }

    /// A dense matrix of `features` and tokens.
    pub(crate) fn matrix(name: impl Into<String>, dtype: DType, features: Dimension, layout: Layout) -> Operand {
        let shape = match layout {
            Layout::FeatureMajor => vec![features, Dimension::M],
            Layout::TokenMajor => vec![Dimension::M, features],
        };
        Operand { name: name.into(), dtype, shape }
    }
}

/// A constant factor: a finite f32, equal where its bits are.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(from = "f64", into = "f64")]
pub struct Factor(pub f32);

impl PartialEq for Factor {
    fn eq(&self, other: &Factor) -> bool {
        self.0.to_bits() == other.0.to_bits()
    }
}

impl Eq for Factor {}

impl std::hash::Hash for Factor {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.to_bits().hash(state);
    }
}

impl From<f64> for Factor {
    fn from(value: f64) -> Factor {
        Factor(value as f32)
    }
}

impl From<Factor> for f64 {
    fn from(factor: Factor) -> f64 {
        f64::from(factor.0)
    }
}

/// One step from the accumulated product to the output, computed in f32.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EpilogueOp {
    /// Adds the vector of N elements with this name.
    Bias(String),
    /// Adds the matrix of N x M elements with this name.
    Residual(String),
    /// `max(y, 0)`.
    Relu,
    /// `y / 2 * (1 + erf(y / sqrt(2)))`, or its usual approximation by tanh.
    Gelu,
    /// `y * sigmoid(y)`.
    Silu,
    /// Multiplies by a constant.
    Scale(Factor),
}

/// The names of the three indices in the contraction; a schedule calls the axes by them.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AxisNames {
    /// Of M.
    pub m: String,
    /// Of N.
    pub n: String,
    /// Of K.
    pub k: String,
}

impl AxisNames {
    /// The index of a dimension.
    pub fn of(&self, dimension: Dimension) -> &str {
        match dimension {
            Dimension::M => &self.m,
            Dimension::N => &self.n,
            Dimension::K => &self.k,
        }
    }
}

impl Default for AxisNames {
    fn default() -> AxisNames {
        AxisNames { m: "m".into(), n: "n".into(), k: "k".into() }
    }
}

/// The fields of a program before they are checked.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Parts {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub docs: Vec<String>,
    pub m: Dim,
    pub n: Dim,
    pub k: Dim,
    pub axes: AxisNames,
    pub weight: Operand,
    pub input: Operand,
    pub output: Operand,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub extras: Vec<Operand>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub epilogue: Vec<EpilogueOp>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub directives: Vec<Directive>,
}

impl Parts {
    pub fn dim(&self, dimension: Dimension) -> &Dim {
        match dimension {
            Dimension::M => &self.m,
            Dimension::N => &self.n,
            Dimension::K => &self.k,
        }
    }

    /// The checked program: what the parser makes of the parts' text, which must be these parts again.
    pub fn check(self) -> Result<Program, Diagnostics> {
        let text = self.to_string();
        let program = Program::parse_unbound(&text)?;
        if program.0 == self {
            return Ok(program);
        }
        Err(Diagnostics::lone(
            Diagnostic::new("the fields of this program are not those of any DSL text")
                .expected(format!("fields as those of\n{program}"))
                .help("names are plain identifiers, docs are single lines, every extra operand is used"),
        ))
    }
}

/// A checked sparse GEMM: immutable, comparable, and the same as its DSL text and its JSON.
///
/// `Display` prints canonical DSL text, which parses back to an equal program.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "Parts", try_from = "Parts")]
pub struct Program(pub(crate) Parts);

impl From<Program> for Parts {
    fn from(program: Program) -> Parts {
        program.0
    }
}

impl TryFrom<Parts> for Program {
    type Error = Diagnostics;
    fn try_from(parts: Parts) -> Result<Program, Diagnostics> {
        parts.check()
    }
}

impl Program {
    /// The name of the item form; `None` in expression form.
    pub fn name(&self) -> Option<&str> {
        self.0.name.as_deref()
    }

    /// The lines of the doc comment.
    pub fn docs(&self) -> &[String] {
        &self.0.docs
    }

    /// The size of a dimension.
    pub fn dim(&self, dimension: Dimension) -> &Dim {
        self.0.dim(dimension)
    }

    /// The names of the indices.
    pub fn axes(&self) -> &AxisNames {
        &self.0.axes
    }

    /// W[N, K].
    pub fn weight(&self) -> &Operand {
        &self.0.weight
    }

    /// X[K, M] or X[M, K].
    pub fn input(&self) -> &Operand {
        &self.0.input
    }

    /// Y[N, M] or Y[M, N].
    pub fn output(&self) -> &Operand {
        &self.0.output
    }

    /// The vectors and matrices that the epilogue reads.
    pub fn extras(&self) -> &[Operand] {
        &self.0.extras
    }

    /// The extra operand with this name.
    pub fn extra(&self, name: &str) -> Option<&Operand> {
        self.0.extras.iter().find(|operand| operand.name == name)
    }

    /// What happens to the accumulated product, in order.
    pub fn epilogue(&self) -> &[EpilogueOp] {
        &self.0.epilogue
    }

    /// The schedule.
    pub fn directives(&self) -> &[Directive] {
        &self.0.directives
    }

    /// The same computation under another schedule.
    ///
    /// # Errors
    /// Every directive that the checker refuses; places refer to the canonical text.
    pub fn with_directives(&self, directives: Vec<Directive>) -> Result<Program, Diagnostics> {
        Parts { directives, ..self.0.clone() }.check()
    }

    /// As JSON, with the fields of the accessors.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a program has only strings for keys and finite numbers")
    }

    /// From JSON. The program is checked as if it had been written.
    ///
    /// # Errors
    /// Malformed JSON, or everything that is wrong with the program.
    pub fn from_json(json: &str) -> Result<Program, Diagnostics> {
        let parts: Parts = serde_json::from_str(json)
            .map_err(|error| Diagnostics::lone(Diagnostic::new(format!("the JSON holds no program: {error}"))))?;
        parts.check()
    }
}
