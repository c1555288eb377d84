//! Declarations of operands and the contraction that gives them their roles and the indices their names.

use crate::DType;
use crate::ast::{Access, Ast, Contraction, Name, OperandDecl, Role, Statement};
use crate::diagnostic::{At, Diagnostic, Errors, did_you_mean, quoted};
use crate::program::{AxisNames, Dimension, Operand};

/// A declared operand whose type and shape are known.
#[derive(Clone, Debug)]
pub(super) struct Declared {
    pub operand: Operand,
    pub role: Role,
    /// The name in its declaration.
    pub at: At,
}

/// The operands by role. What could not be found out is `None`, and an error is noted.
#[derive(Debug, Default)]
pub(super) struct Operands {
    pub weight: Option<Declared>,
    pub input: Option<Declared>,
    pub output: Option<Declared>,
    pub extras: Vec<Declared>,
    pub axes: Option<AxisNames>,
    /// Every name that was declared, usable or not.
    pub names: Vec<String>,
}

impl Operands {
    pub fn is_declared(&self, name: &str) -> bool {
        self.names.iter().any(|declared| declared == name)
    }
}

pub(super) fn check(ast: &Ast, errors: &mut Errors) -> Operands {
    let mut operands = Operands::default();
    let mut inputs: Vec<Declared> = Vec::new();
    for decl in ast.statements.iter().filter_map(as_operand) {
        if operands.is_declared(&decl.name.text) {
            let twice = Diagnostic::new(format!("operand `{}` is declared twice", decl.name.text));
            errors.push(twice.help("give each operand a name of its own").at(decl.name.at));
            continue;
        }
        operands.names.push(decl.name.text.clone());
        let declared = declare(decl, errors);
        let slot = match decl.role {
            Role::Weight => &mut operands.weight,
            Role::Output => &mut operands.output,
            Role::Input => {
                inputs.extend(declared);
                continue;
            }
        };
        match slot {
            Some(first) => {
                let role = role_name(decl.role);
                errors.push(
                    Diagnostic::new(format!("a gemm has one {role}"))
                        .expected(format!("only `{}`", first.operand.name))
                        .found(format!("`{}`", decl.name.text))
                        .at(decl.name.at),
                );
            }
            None => *slot = declared,
        }
    }
    missing(ast, errors);
    let contraction = ast.statements.iter().find_map(as_contraction);
    for second in ast.statements.iter().filter_map(as_contraction).skip(1) {
        let error = Diagnostic::new("a gemm has one contraction").found("a second `+=`");
        errors.push(error.help("write a gemm for each").at(second.target.at));
    }
    let mut used = None;
    if let Some(contraction) = contraction {
        used = contract(contraction, &mut operands, &inputs, ast, errors);
    }
    // Without a usable contraction the input is the one of K features, so that other errors can still be found.
    let place = used.or_else(|| inputs.iter().position(|input| input.operand.shape.contains(&Dimension::K)));
    if let Some(place) = place {
        operands.input = Some(inputs.remove(place));
    }
    for extra in &inputs {
        let shape = &extra.operand.shape;
        let fits = *shape == [Dimension::N]
            || *shape == [Dimension::N, Dimension::M]
            || *shape == [Dimension::M, Dimension::N];
        if !fits {
            let error = Diagnostic::new(format!("shape of `{}` fits no epilogue", extra.operand.name))
                .expected("`[N]` (a bias), `[N, M]` or `[M, N]` (a residual)")
                .found(format!("`{}`", extra.operand));
            errors.push(error.at(extra.at));
        }
    }
    operands.extras = inputs;
    dtypes(&operands, ast, errors);
    operands
}

fn as_operand(statement: &Statement) -> Option<&OperandDecl> {
    if let Statement::Operand(decl) = statement { Some(decl) } else { None }
}

fn as_contraction(statement: &Statement) -> Option<&Contraction> {
    if let Statement::Contraction(contraction) = statement { Some(contraction) } else { None }
}

fn role_name(role: Role) -> &'static str {
    match role {
        Role::Weight => "weight",
        Role::Input => "input",
        Role::Output => "output",
    }
}

/// Reports the statements that every gemm has, unless one did not parse and may have been it.
fn missing(ast: &Ast, errors: &mut Errors) {
    let has = |role| ast.statements.iter().filter_map(as_operand).any(|decl| decl.role == role);
    let needed = [
        ("weight", has(Role::Weight), "`weight w: bf16[N, K];`"),
        ("input", has(Role::Input), "`input x: bf16[K, M];`"),
        ("output", has(Role::Output), "`output y: bf16[N, M];`"),
        (
            "contraction",
            ast.statements.iter().filter_map(as_contraction).next().is_some(),
            "`y[n, m] += w[n, k] * x[k, m];`",
        ),
    ];
    if ast.lost.is_empty() {
        for (what, _, example) in needed.into_iter().filter(|(_, there, _)| !there) {
            errors.push(Diagnostic::new(format!("the gemm has no {what}")).expected(example).at(ast.end));
        }
    }
}

/// Type and shape of one declaration.
fn declare(decl: &OperandDecl, errors: &mut Errors) -> Option<Declared> {
    let dtype = DType::from_name(&decl.dtype.text);
    if dtype.is_none() {
        let names = DType::ALL.map(DType::name);
        errors.push(
            Diagnostic::new(format!("unknown element type `{}`", decl.dtype.text))
                .expected(quoted(names, "or"))
                .found(format!("`{}`", decl.dtype.text))
                .maybe_help(did_you_mean(&decl.dtype.text, names))
                .at(decl.dtype.at),
        );
    }
    let mut known = true;
    let mut shape = Vec::new();
    for name in &decl.shape {
        match Dimension::from_name(&name.text) {
            Some(dimension) if shape.contains(&dimension) => {
                known = false;
                let error = Diagnostic::new(format!("shape of `{}` names `{dimension}` twice", decl.name.text));
                errors.push(error.at(name.at));
            }
            Some(dimension) => shape.push(dimension),
            None => {
                known = false;
                let names = Dimension::ALL.map(Dimension::name);
                errors.push(
                    Diagnostic::new(format!("unknown dimension `{}`", name.text))
                        .expected(quoted(names, "or"))
                        .found(format!("`{}`", name.text))
                        .maybe_help(did_you_mean(&name.text, names))
                        .at(name.at),
                );
            }
        }
    }
    let operand = Operand { name: decl.name.text.clone(), dtype: dtype.unwrap_or(DType::F32), shape };
    if known && let Some(error) = shape_error(decl.role, &operand) {
        errors.push(error.at(decl.shape_at));
        known = false;
    }
    (known && dtype.is_some()).then_some(Declared { operand, role: decl.role, at: decl.name.at })
}

/// What is wrong with the shape of a weight or output; inputs are told apart by the contraction.
fn shape_error(role: Role, operand: &Operand) -> Option<Diagnostic> {
    use Dimension::{K, M, N};
    let (fits, expected) = match role {
        Role::Weight => (operand.shape == [N, K], "`[N, K]`"),
        Role::Output => (operand.shape == [N, M] || operand.shape == [M, N], "`[N, M]` or `[M, N]` (token-major)"),
        Role::Input => return None,
    };
    let error = Diagnostic::new(format!("shape of the {} does not match the header", role_name(role)))
        .expected(expected)
        .found(format!("`{operand}`"));
    let transposed = role == Role::Weight && operand.shape == [K, N];
    let help = "a weight has its output features as rows; transpose it when it is loaded";
    (!fits).then(|| if transposed { error.help(help) } else { error })
}

/// Finds the roles and index names of the contraction; returns the place of X among the inputs.
fn contract(
    contraction: &Contraction,
    operands: &mut Operands,
    inputs: &[Declared],
    ast: &Ast,
    errors: &mut Errors,
) -> Option<usize> {
    let all: Vec<Declared> = operands.weight.iter().chain(&operands.output).chain(inputs).cloned().collect();
    let mut find = |access: &Access| {
        let found = all.iter().find(|declared| declared.operand.name == access.name.text);
        let excused = operands.is_declared(&access.name.text) || ast.lost.contains(&access.name.text);
        if found.is_none() && !excused {
            let names = || operands.names.iter().map(String::as_str);
            errors.push(
                Diagnostic::new(format!("unknown operand `{}`", access.name.text))
                    .expected(format!("a declared operand: {}", quoted(names(), "or")))
                    .found(format!("`{}`", access.name.text))
                    .maybe_help(did_you_mean(&access.name.text, names()))
                    .at(access.name.at),
            );
        }
        found
    };
    let target = find(&contraction.target);
    let [first, second] = contraction.factors.each_ref().map(&mut find);
    let (first, second) = (first?, second?);
    if let Some(target) = target
        && target.role != Role::Output
    {
        let error = Diagnostic::new("the contraction does not write the output").expected("the `output` operand");
        errors.push(error.found(format!("`{}`", target.operand.name)).at(contraction.target.name.at));
        return None;
    }
    let [a, b] = &contraction.factors;
    let (weight, weight_access, input, input_access) = match (first.role, second.role) {
        (Role::Weight, Role::Input) => (first, a, second, b),
        (Role::Input, Role::Weight) => (second, b, first, a),
        _ => {
            let error = Diagnostic::new("the contraction is not the product of the weight and an input")
                .expected("one `weight` and one `input` operand")
                .found(format!("`{}` and `{}`", first.operand.name, second.operand.name));
            errors.push(error.at(a.at.to(b.at)));
            return None;
        }
    };
    let shape = &input.operand.shape;
    use Dimension::{K, M};
    if *shape != [K, M] && *shape != [M, K] {
        let error = Diagnostic::new("shape of the input does not match the header")
            .expected("`[K, M]` or `[M, K]` (token-major)")
            .found(format!("`{}`", input.operand));
        errors.push(error.at(input.at));
        return None;
    }
    let place = inputs.iter().position(|declared| declared.operand.name == input.operand.name);
    let accesses = [(weight, weight_access), (input, input_access), (target?, &contraction.target)];
    operands.axes = bind_indices(&accesses, errors);
    place
}

/// Binds each index to the dimension at its position, the weight's first; a second binding must agree.
fn bind_indices(accesses: &[(&Declared, &Access)], errors: &mut Errors) -> Option<AxisNames> {
    let mut names: [Option<&Name>; 3] = [None; 3];
    let mut right = true;
    for (declared, access) in accesses {
        let operand = &declared.operand;
        if access.index.len() != operand.shape.len() {
            right = false;
            errors.push(
                Diagnostic::new(format!("`{}` has {} dimensions", operand.name, operand.shape.len()))
                    .expected(format!("{} indices, for `{operand}`", operand.shape.len()))
                    .found(format!("{}", access.index.len()))
                    .at(access.at),
            );
            continue;
        }
        for (index, &dimension) in access.index.iter().zip(&operand.shape) {
            let other = Dimension::ALL
                .into_iter()
                .find(|&d| d != dimension && names[d as usize].is_some_and(|name| name.text == index.text));
            let here = names[dimension as usize];
            let error = match (other, here) {
                (None, None) => {
                    names[dimension as usize] = Some(index);
                    continue;
                }
                (None, Some(name)) if name.text == index.text => continue,
                (_, Some(name)) => Diagnostic::new(format!("index `{}` does not run over {dimension}", index.text))
                    .expected(format!("`{}`, the index of {dimension}, because `{operand}`", name.text))
                    .found(format!("`{}`", index.text)),
                (Some(other), None) => Diagnostic::new(format!("index `{}` already runs over {other}", index.text))
                    .expected(format!("an index of its own for {dimension}, because `{operand}`"))
                    .found(format!("`{}`", index.text)),
            };
            right = false;
            let help = "indices stand in the order of the declared shape";
            errors.push(error.help(help).at(index.at));
        }
    }
    let text = |dimension: Dimension| names[dimension as usize].map(|name| name.text.clone());
    if !right {
        return None;
    }
    Some(AxisNames { m: text(Dimension::M)?, n: text(Dimension::N)?, k: text(Dimension::K)? })
}

/// Weight and input are multiplied by one instruction, so they have one type.
fn dtypes(operands: &Operands, ast: &Ast, errors: &mut Errors) {
    let (Some(weight), Some(input)) = (&operands.weight, &operands.input) else { return };
    if weight.operand.dtype != input.operand.dtype {
        let decl = ast.statements.iter().filter_map(as_operand).find(|d| d.name.text == input.operand.name);
        errors.push(
            Diagnostic::new("weight and input have different element types")
                .expected(format!("`{}`, as of `{}`", weight.operand.dtype, weight.operand.name))
                .found(format!("`{}`", input.operand.dtype))
                .at(decl.map_or(input.at, |decl| decl.dtype.at)),
        );
    }
}
