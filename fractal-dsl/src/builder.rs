//! The same [`Program`] without text: a builder.

use crate::directive::{Directive, Level, Memory};
use crate::parse::doc_lines;
use crate::pattern::Keep;
use crate::program::{AxisNames, Dim, Dimension, EpilogueOp, Factor, Layout, Operand, Parts, Program};
use crate::{DType, Diagnostics, Intrinsic};

/// Builds a [`Program`] step by step. Everything is checked in [`ProgramBuilder::build`], all errors at once.
///
/// ```
/// use fractal_dsl::{DType, Program, pattern::{Keep, Ratio}};
///
/// let program = Program::builder("FfnUp", DType::BF16)
///     .n(4096)
///     .k(1024)
///     .bias("bias", DType::F32)
///     .gelu()
///     .split("n", 128, "no", "ni")
///     .skip("k", ["no"], Keep::Ratio(Ratio::percent(25.0)?))
///     .build()?;
/// assert_eq!(program, Program::parse(&program.to_string())?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ProgramBuilder(Parts);

impl Program {
    /// A builder of `y[n, m] += w[n, k] * x[k, m]` with run-time dimensions, all operands of type `dtype`. An empty
    /// name makes the expression form.
    pub fn builder(name: &str, dtype: DType) -> ProgramBuilder {
        let matrix = |name, features| Operand::matrix(name, dtype, features, Layout::FeatureMajor);
        ProgramBuilder(Parts {
            name: (!name.is_empty()).then(|| name.to_owned()),
            docs: Vec::new(),
            m: Dim::Runtime,
            n: Dim::Runtime,
            k: Dim::Runtime,
            axes: AxisNames::default(),
            weight: Operand { name: "w".into(), dtype, shape: vec![Dimension::N, Dimension::K] },
            input: matrix("x", Dimension::K),
            output: matrix("y", Dimension::N),
            extras: Vec::new(),
            epilogue: Vec::new(),
            directives: Vec::new(),
        })
    }
}

impl ProgramBuilder {
    /// The doc comment.
    pub fn docs(mut self, text: &str) -> Self {
        self.0.docs = doc_lines(text);
        self
    }

    /// Tokens.
    pub fn m(mut self, size: impl Into<Dim>) -> Self {
        self.0.m = size.into();
        self
    }

    /// Output features.
    pub fn n(mut self, size: impl Into<Dim>) -> Self {
        self.0.n = size.into();
        self
    }

    /// Input features.
    pub fn k(mut self, size: impl Into<Dim>) -> Self {
        self.0.k = size.into();
        self
    }

    /// The names of the indices, by which the schedule calls the axes.
    pub fn axes(mut self, n: &str, k: &str, m: &str) -> Self {
        self.0.axes = AxisNames { m: m.into(), n: n.into(), k: k.into() };
        self
    }

    /// Name and type of the weight.
    pub fn weight(mut self, name: &str, dtype: DType) -> Self {
        self.0.weight = Operand { name: name.into(), dtype, ..self.0.weight };
        self
    }

    /// Name, type and layout of the input.
    pub fn input(mut self, name: &str, dtype: DType, layout: Layout) -> Self {
        self.0.input = Operand::matrix(name, dtype, Dimension::K, layout);
        self
    }

    /// Name, type and layout of the output.
    pub fn output(mut self, name: &str, dtype: DType, layout: Layout) -> Self {
        self.0.output = Operand::matrix(name, dtype, Dimension::N, layout);
        self
    }

    /// Declares an operand of the epilogue unless it is declared, and adds it.
    fn add(mut self, operand: Operand, op: EpilogueOp) -> Self {
        if !self.0.extras.contains(&operand) {
            self.0.extras.push(operand);
        }
        self.then(op)
    }

    /// Epilogue: adds a vector of N elements.
    pub fn bias(self, name: &str, dtype: DType) -> Self {
        let operand = Operand { name: name.into(), dtype, shape: vec![Dimension::N] };
        self.add(operand, EpilogueOp::Bias(name.into()))
    }

    /// Epilogue: adds a matrix of N x M elements.
    pub fn residual(self, name: &str, dtype: DType, layout: Layout) -> Self {
        let operand = Operand::matrix(name, dtype, Dimension::N, layout);
        self.add(operand, EpilogueOp::Residual(name.into()))
    }

    /// Epilogue: one more step.
    pub fn then(mut self, op: EpilogueOp) -> Self {
        self.0.epilogue.push(op);
        self
    }

    /// Epilogue: ReLU.
    pub fn relu(self) -> Self {
        self.then(EpilogueOp::Relu)
    }

    /// Epilogue: GELU.
    pub fn gelu(self) -> Self {
        self.then(EpilogueOp::Gelu)
    }

    /// Epilogue: SiLU.
    pub fn silu(self) -> Self {
        self.then(EpilogueOp::Silu)
    }

    /// Epilogue: multiplies by a finite constant.
    pub fn scale(self, factor: f32) -> Self {
        self.then(EpilogueOp::Scale(Factor(factor)))
    }

    /// Schedule: one more primitive.
    pub fn directive(mut self, directive: Directive) -> Self {
        self.0.directives.push(directive);
        self
    }

    /// Schedule: `let (outer, inner) = split(axis, factor);`
    pub fn split(self, axis: &str, factor: usize, outer: &str, inner: &str) -> Self {
        let [axis, outer, inner] = [axis, outer, inner].map(str::to_owned);
        self.directive(Directive::Split { axis, factor, outer, inner })
    }

    /// Schedule: `let out = join(a, b);`
    pub fn join(self, a: &str, b: &str, out: &str) -> Self {
        self.directive(Directive::Join { a: a.into(), b: b.into(), out: out.into() })
    }

    /// Schedule: `reorder(…);`
    pub fn reorder<'a>(self, loops: impl IntoIterator<Item = &'a str>) -> Self {
        self.directive(Directive::Reorder { loops: loops.into_iter().map(str::to_owned).collect() })
    }

    /// Schedule: `skip(axis, per = (…), keep = …);`
    pub fn skip<'a>(self, axis: &str, per: impl IntoIterator<Item = &'a str>, keep: Keep) -> Self {
        let per = Some(per.into_iter().map(str::to_owned).collect());
        self.directive(Directive::Skip { axis: axis.into(), per, keep })
    }

    /// Schedule: `skip(axis, keep = …);`, whose regions are all loops outside `axis`.
    pub fn skip_inside(self, axis: &str, keep: Keep) -> Self {
        self.directive(Directive::Skip { axis: axis.into(), per: None, keep })
    }

    /// Schedule: `permute(axis);`
    pub fn permute(self, axis: &str) -> Self {
        self.directive(Directive::Permute { axis: axis.into() })
    }

    /// Schedule: `tile(axis, size);`
    pub fn tile(self, axis: &str, size: usize) -> Self {
        self.directive(Directive::Tile { axis: axis.into(), size })
    }

    /// Schedule: `condense(operand);`
    pub fn condense(self, operand: &str) -> Self {
        self.directive(Directive::Condense { operand: operand.into(), run: None })
    }

    /// Schedule: `condense(operand, run);`
    pub fn condense_boxes(self, operand: &str, run: usize) -> Self {
        self.directive(Directive::Condense { operand: operand.into(), run: Some(run) })
    }

    /// Schedule: `resident(operand);`
    pub fn resident(self, operand: &str) -> Self {
        self.directive(Directive::Resident { operand: operand.into() })
    }

    /// Schedule: `cluster(axis, size);`
    pub fn cluster(self, axis: &str, size: usize) -> Self {
        self.directive(Directive::Cluster { axis: axis.into(), size })
    }

    /// Schedule: `bind(axis, level);`
    pub fn bind(self, axis: &str, level: Level) -> Self {
        self.directive(Directive::Bind { axis: axis.into(), level })
    }

    /// Schedule: `stage(operand, memory);`
    pub fn stage(self, operand: &str, memory: Memory) -> Self {
        self.directive(Directive::Stage { operand: operand.into(), memory })
    }

    /// Schedule: `pipeline(depth);`
    pub fn pipeline(self, depth: usize) -> Self {
        self.directive(Directive::Pipeline { depth })
    }

    /// Schedule: `tensorize(n_loop, m, k_loop, intrinsic);`
    pub fn tensorize(self, n_loop: &str, m: &str, k_loop: &str, intrinsic: Intrinsic) -> Self {
        let loops = [n_loop, m, k_loop].map(str::to_owned).to_vec();
        self.directive(Directive::Tensorize { loops, intrinsic })
    }

    /// The program.
    ///
    /// # Errors
    /// Everything that is wrong; places refer to the canonical text of what was built.
    pub fn build(self) -> Result<Program, Diagnostics> {
        self.0.check()
    }
}
