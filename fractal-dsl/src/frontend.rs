//! Text -> [`Program`]: the stages in order, for whole programs and for bare schedules.

use crate::ast::{Ast, Contraction, DimDecl, DimValue, OperandDecl, Role, Statement};
use crate::check::{Options, Unbound, check};
use crate::diagnostic::{At, Diagnostics, Errors};
use crate::parse::{parse, parse_schedule, synthetic, tokens};
use crate::program::{Dimension, Program};
use crate::{DType, nest};
use proc_macro2::{Literal, TokenStream, TokenTree};

impl Program {
    /// Reads a program, in item form or expression form.
    ///
    /// # Errors
    /// Everything that is wrong with it. A named constant in the header is an error here: see [`Program::parse_with`].
    pub fn parse(source: &str) -> Result<Program, Diagnostics> {
        Program::parse_with(source, &[])
    }

    /// Reads a program whose header has named constants, each of which `bindings` gives a value. A binding by the name
    /// of a dimension (`("N", 4096)`) gives the whole expression its value.
    ///
    /// # Errors
    /// Everything that is wrong with the program, and every constant that has no value.
    pub fn parse_with(source: &str, bindings: &[(&str, usize)]) -> Result<Program, Diagnostics> {
        read(source, Options { bindings, unbound: Unbound::Refuse })
    }

    /// Reads a program and leaves named constants in its header as [`crate::Dim::Const`].
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn parse_unbound(source: &str) -> Result<Program, Diagnostics> {
        read(source, Options { bindings: &[], unbound: Unbound::Keep })
    }

    /// Gives named constants their values, as [`Program::parse_with`] does; those without a value stay.
    ///
    /// # Errors
    /// What the values make wrong: a dimension of 0, a loop shorter than what is kept of it.
    pub fn bind(&self, bindings: &[(&str, usize)]) -> Result<Program, Diagnostics> {
        read(&self.to_string(), Options { bindings, unbound: Unbound::Keep })
    }

    /// The program around a bare schedule, for command lines: `y[n, m] += w[n, k] * x[k, m]` with m run-time.
    ///
    /// `schedule` is a list of schedule statements, of which the last needs no `;`
    /// (`let (no, ni) = split(n, 128); skip(k, per = no, keep = 25%)`), or a nest in the papers' notation
    /// (`n0:32 k0:64^16 n1:32 k1:16`: loops outermost first, `^` before the number that is kept).
    ///
    /// # Errors
    /// Everything that is wrong with the schedule or the sizes.
    pub fn for_pattern_text(schedule: &str, n: usize, k: usize, dtype: DType) -> Result<Program, Diagnostics> {
        on_its_own_thread(|| {
            let mut errors = Errors::new();
            let program = pattern_program(schedule, n, k, dtype, &mut errors);
            program.ok_or_else(|| errors.into_diagnostics(schedule))
        })
    }
}

fn read(source: &str, options: Options<'_>) -> Result<Program, Diagnostics> {
    on_its_own_thread(|| {
        let mut errors = Errors::new();
        let program = tokens(source, &mut errors)
            .and_then(|tokens| parse(tokens, &mut errors))
            .and_then(|ast| check(&ast, options, &mut errors));
        program.ok_or_else(|| errors.into_diagnostics(source))
    })
}

/// Runs `stages` on a thread of its own. proc-macro2 keeps every text that it has read as long as the thread lives, so
/// that spans can be resolved; a tuner that checks a million programs would hold them all.
fn on_its_own_thread<T: Send>(stages: impl Fn() -> T + Sync) -> T {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("fractal-parse".into()).spawn_scoped(scope, &stages);
        match thread.map(|thread| thread.join()) {
            Ok(Ok(result)) => result,
            Ok(Err(panic)) => std::panic::resume_unwind(panic),
            Err(_) => stages(),
        }
    })
}

/// What a macro call says.
#[derive(Debug)]
pub struct MacroInput {
    /// The tree, where there is enough of one.
    pub ast: Option<Ast>,
    /// The program, where nothing is wrong.
    pub program: Option<Program>,
    /// Everything that is wrong.
    pub errors: Errors,
}

/// Parses and checks the tokens of a macro call.
pub fn from_tokens(stream: TokenStream) -> MacroInput {
    let mut errors = Errors::new();
    let options = Options { bindings: &[], unbound: Unbound::Keep };
    let ast = parse(stream, &mut errors);
    let program = ast.as_ref().and_then(|ast| check(ast, options, &mut errors));
    MacroInput { ast, program, errors }
}

fn pattern_program(schedule: &str, n: usize, k: usize, dtype: DType, errors: &mut Errors) -> Option<Program> {
    let stream = tokens(schedule, errors)?;
    let (primitives, lost) = if nest::is_nest(&stream) {
        (nest::parse(stream, n, k, errors)?, Vec::new())
    } else {
        parse_schedule(stream, errors)?
    };
    let fixed = |size: usize| {
        let tokens = TokenTree::Literal(Literal::usize_unsuffixed(size)).into();
        Some(DimValue { tokens, at: At::nowhere() })
    };
    let names = |list: &[&str]| list.iter().map(|name| synthetic(name)).collect::<Vec<_>>();
    let operand = |role, name, shape: [&str; 2]| {
        Statement::Operand(OperandDecl {
            role,
            name: synthetic(name),
            dtype: synthetic(dtype.name()),
            shape: names(&shape),
            shape_at: At::nowhere(),
        })
    };
    let access =
        |name, index: [&str; 2]| crate::ast::Access { name: synthetic(name), index: names(&index), at: At::nowhere() };
    let ast = Ast {
        docs: Vec::new(),
        vis: TokenStream::new(),
        name: None,
        dims: vec![
            DimDecl { name: synthetic("M"), value: None },
            DimDecl { name: synthetic("N"), value: fixed(n) },
            DimDecl { name: synthetic("K"), value: fixed(k) },
        ],
        header: At::nowhere(),
        statements: vec![
            operand(Role::Weight, "w", ["N", "K"]),
            operand(Role::Input, "x", ["K", "M"]),
            operand(Role::Output, "y", ["N", "M"]),
            Statement::Contraction(Contraction {
                target: access("y", ["n", "m"]),
                factors: [access("w", ["n", "k"]), access("x", ["k", "m"])],
            }),
            Statement::Schedule(primitives),
        ],
        end: At::nowhere(),
        lost,
    };
    check(&ast, Options { bindings: &[], unbound: Unbound::Refuse }, errors)
}

impl Dimension {
    /// The tokens of a constant dimension's value in `ast`.
    pub fn const_tokens(self, ast: &Ast) -> Option<&TokenStream> {
        let decl = ast.dims.iter().find(|decl| decl.name.text == self.name())?;
        decl.value.as_ref().map(|value| &value.tokens)
    }
}
