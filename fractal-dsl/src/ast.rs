//! The syntax tree: what was written, with the place of every token that a message may point at.

use crate::diagnostic::At;
use crate::pattern::Keep;
use proc_macro2::TokenStream;

/// An identifier. `r#` is kept only before keywords.
#[derive(Clone, Debug)]
pub struct Name {
    /// The text.
    pub text: String,
    /// The token.
    pub at: At,
}

/// A whole number as written.
#[derive(Clone, Copy, Debug)]
pub struct Number {
    /// Its value.
    pub value: usize,
    /// The token.
    pub at: At,
}

/// A whole `gemm`.
#[derive(Clone, Debug)]
pub struct Ast {
    /// Lines of the doc comment.
    pub docs: Vec<String>,
    /// `pub`, `pub(crate)` or nothing.
    pub vis: TokenStream,
    /// The name of the item form.
    pub name: Option<Name>,
    /// The header.
    pub dims: Vec<DimDecl>,
    /// The header's angle brackets.
    pub header: At,
    /// The statements in order.
    pub statements: Vec<Statement>,
    /// The end of the body, where missing statements are reported.
    pub end: At,
    /// Identifiers of what could not be parsed: names that may have been declared there.
    pub lost: Vec<String>,
}

/// One dimension of the header.
#[derive(Clone, Debug)]
pub struct DimDecl {
    /// `M`, `N` or `K`.
    pub name: Name,
    /// What stands after `=`.
    pub value: Option<DimValue>,
}

/// The value of a dimension: a constant expression.
#[derive(Clone, Debug)]
pub struct DimValue {
    /// Its tokens, without the braces around them.
    pub tokens: TokenStream,
    /// Where they are.
    pub at: At,
}

/// One statement of a body.
#[derive(Clone, Debug)]
pub enum Statement {
    /// `weight w: bf16[N, K];`
    Operand(OperandDecl),
    /// `y[n, m] += w[n, k] * x[k, m];`
    Contraction(Contraction),
    /// `y = relu(y + bias[n]);`
    Epilogue(Epilogue),
    /// `schedule { … }`
    Schedule(Vec<Primitive>),
}

/// The first word of an operand's declaration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The sparse operand.
    Weight,
    /// A dense operand.
    Input,
    /// The result.
    Output,
}

/// A declared operand.
#[derive(Clone, Debug)]
pub struct OperandDecl {
    /// Its role.
    pub role: Role,
    /// Its name.
    pub name: Name,
    /// Its element type.
    pub dtype: Name,
    /// Its dimensions.
    pub shape: Vec<Name>,
    /// The brackets around the dimensions.
    pub shape_at: At,
}

/// `name[i, j]`.
#[derive(Clone, Debug)]
pub struct Access {
    /// The operand.
    pub name: Name,
    /// The indices.
    pub index: Vec<Name>,
    /// From the name to the closing bracket.
    pub at: At,
}

/// The contraction.
#[derive(Clone, Debug)]
pub struct Contraction {
    /// The left side.
    pub target: Access,
    /// The two factors.
    pub factors: [Access; 2],
}

/// One epilogue statement.
#[derive(Clone, Debug)]
pub struct Epilogue {
    /// The left side.
    pub target: Name,
    /// Its indices, where they are written.
    pub target_index: Option<Access>,
    /// The right side.
    pub value: Expr,
}

/// An epilogue expression.
#[derive(Clone, Debug)]
pub enum Expr {
    /// `a + b`
    Add(Box<Expr>, Box<Expr>, At),
    /// `a * b`
    Mul(Box<Expr>, Box<Expr>, At),
    /// A number.
    Const(f32, At),
    /// A bare name.
    Name(Name),
    /// `name[i, j]`
    Access(Access),
    /// `f(a)`
    Call(Name, Box<Expr>, At),
}

impl Expr {
    /// The tokens of the expression.
    pub fn at(&self) -> At {
        match self {
            Expr::Add(_, _, at) | Expr::Mul(_, _, at) | Expr::Const(_, at) | Expr::Call(_, _, at) => *at,
            Expr::Name(name) => name.at,
            Expr::Access(access) => access.at,
        }
    }
}

/// One statement of a schedule.
#[derive(Clone, Debug)]
pub struct Primitive {
    /// What it does.
    pub op: Op,
    /// The primitive's name.
    pub at: At,
}

/// A primitive with its arguments as written.
#[derive(Clone, Debug)]
#[allow(missing_docs)] // the fields are those of `Directive`
pub enum Op {
    Split { axis: Name, factor: Number, outer: Name, inner: Name },
    Join { a: Name, b: Name, out: Name },
    Reorder { loops: Vec<Name> },
    Skip { axis: Name, per: Option<Vec<Name>>, keep: Keep, keep_at: At },
    Permute { axis: Name },
    Tile { axis: Name, size: Number },
    Condense { operand: Name, run: Option<Number> },
    Bind { axis: Name, level: Name },
    Stage { operand: Name, memory: Name },
    Resident { operand: Name },
    Cluster { axis: Name, size: Number },
    Pipeline { depth: Number },
    Tensorize { loops: Vec<Name>, intrinsic: Name },
}
