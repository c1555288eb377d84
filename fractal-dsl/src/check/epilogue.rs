//! Epilogue statements: one chain from the accumulated product to the output.

use super::operands::Operands;
use crate::DType;
use crate::ast::{Access, Ast, Epilogue, Expr, Statement};
use crate::cursor::MAX_DEPTH;
use crate::diagnostic::{At, Diagnostic, Errors, did_you_mean, quoted};
use crate::program::{AxisNames, Dimension, EpilogueOp, Factor, Layout, Operand};

const FUNCTIONS: [&str; 3] = ["relu", "gelu", "silu"];

/// The steps of all epilogue statements, and the operands that they read without declaration.
pub(super) fn check(ast: &Ast, operands: &Operands, errors: &mut Errors) -> (Vec<EpilogueOp>, Vec<Operand>) {
    let mut checker =
        Checker { ast, operands, axes: operands.axes.clone().unwrap_or_default(), implicit: Vec::new(), errors };
    let mut ops = Vec::new();
    let mut contracted = false;
    for statement in &ast.statements {
        match statement {
            Statement::Contraction(_) => contracted = true,
            Statement::Epilogue(epilogue) => {
                if !contracted && operands.axes.is_some() {
                    let error = Diagnostic::new("the epilogue stands before the contraction");
                    checker.errors.push(error.help("move it below the `+=` statement").at(epilogue.target.at));
                }
                ops.extend(checker.statement(epilogue));
            }
            _ => {}
        }
    }
    if ops.len() > MAX_DEPTH {
        let error = Diagnostic::new("the epilogue is too long").expected(format!("at most {MAX_DEPTH} steps"));
        checker.errors.push(error.found(format!("{}", ops.len())).at(ast.end));
    }
    checker.unused(&ops);
    (ops, checker.implicit)
}

/// What an expression is.
enum Value {
    /// The output, after these steps.
    Chain(Vec<EpilogueOp>),
    /// Operands to be added.
    Terms(Vec<EpilogueOp>),
    Const(f32),
    /// An error is noted.
    Wrong,
}

struct Checker<'a> {
    ast: &'a Ast,
    operands: &'a Operands,
    axes: AxisNames,
    implicit: Vec<Operand>,
    errors: &'a mut Errors,
}

impl Checker<'_> {
    fn wrong(&mut self, error: Diagnostic, at: At) -> Value {
        self.errors.push(error.at(at));
        Value::Wrong
    }

    fn output(&self) -> Option<&Operand> {
        self.operands.output.as_ref().map(|declared| &declared.operand)
    }

    fn is_output(&self, name: &str) -> bool {
        self.output().is_some_and(|output| output.name == name)
    }

    fn statement(&mut self, epilogue: &Epilogue) -> Vec<EpilogueOp> {
        let Some(output) = self.output().map(|output| output.name.clone()) else { return Vec::new() };
        if epilogue.target.text != output {
            let error = Diagnostic::new("an epilogue writes the output")
                .expected(format!("`{output}`"))
                .found(format!("`{}`", epilogue.target.text))
                .maybe_help(did_you_mean(&epilogue.target.text, [output.as_str()]));
            self.errors.push(error.at(epilogue.target.at));
        }
        if let Some(access) = &epilogue.target_index {
            self.output_index(access);
        }
        match self.value(&epilogue.value) {
            Value::Chain(ops) => ops,
            Value::Wrong => Vec::new(),
            Value::Terms(_) | Value::Const(_) => {
                let error = Diagnostic::new(format!("the epilogue does not use `{output}`"))
                    .expected(format!("exactly one `{output}` on the right side"))
                    .help("the accumulated product would be lost");
                self.errors.push(error.at(epilogue.value.at()));
                Vec::new()
            }
        }
    }

    fn value(&mut self, expr: &Expr) -> Value {
        match expr {
            Expr::Const(value, _) => Value::Const(*value),
            Expr::Name(name) if self.is_output(&name.text) => Value::Chain(Vec::new()),
            Expr::Name(name) => {
                let output = self.output().map_or_else(String::new, |output| output.name.clone());
                let n = &self.axes.n;
                let error = Diagnostic::new(format!("`{}` is no value by itself", name.text))
                    .expected(format!("`{output}`, `{}[{n}]` or a number", name.text))
                    .found(format!("`{}`", name.text));
                self.wrong(error, name.at)
            }
            Expr::Access(access) if self.is_output(&access.name.text) => {
                self.output_index(access);
                Value::Chain(Vec::new())
            }
            Expr::Access(access) => self.operand(access),
            Expr::Call(name, argument, at) => {
                let op = match name.text.as_str() {
                    "relu" => EpilogueOp::Relu,
                    "gelu" => EpilogueOp::Gelu,
                    "silu" => EpilogueOp::Silu,
                    _ => {
                        self.value(argument);
                        let error = Diagnostic::new(format!("unknown function `{}`", name.text))
                            .expected(quoted(FUNCTIONS, "or"))
                            .found(format!("`{}`", name.text))
                            .maybe_help(did_you_mean(&name.text, FUNCTIONS));
                        return self.wrong(error, name.at);
                    }
                };
                match self.value(argument) {
                    Value::Chain(mut ops) => {
                        ops.push(op);
                        Value::Chain(ops)
                    }
                    Value::Wrong => Value::Wrong,
                    _ => {
                        let error =
                            Diagnostic::new(format!("`{}` is applied to something else than the output", name.text));
                        self.wrong(error.help("activations take an expression that holds the output"), *at)
                    }
                }
            }
            Expr::Add(a, b, at) => match (self.value(a), self.value(b)) {
                (Value::Chain(mut ops), Value::Terms(terms)) | (Value::Terms(terms), Value::Chain(mut ops)) => {
                    ops.extend(terms);
                    Value::Chain(ops)
                }
                (Value::Terms(mut first), Value::Terms(second)) => {
                    first.extend(second);
                    Value::Terms(first)
                }
                (Value::Chain(_), Value::Chain(_)) => self.twice(b.at()),
                (Value::Wrong, _) | (_, Value::Wrong) => Value::Wrong,
                (Value::Const(_), _) | (_, Value::Const(_)) => {
                    let error = Diagnostic::new("an epilogue adds operands, not constants");
                    self.wrong(error.expected("`name[n]` or `name[n, m]`").found("a number"), *at)
                }
            },
            Expr::Mul(a, b, at) => match (self.value(a), self.value(b)) {
                (Value::Chain(mut ops), Value::Const(c)) | (Value::Const(c), Value::Chain(mut ops)) => {
                    ops.push(EpilogueOp::Scale(Factor(c)));
                    Value::Chain(ops)
                }
                (Value::Chain(_), Value::Chain(_)) => self.twice(b.at()),
                (Value::Wrong, _) | (_, Value::Wrong) => Value::Wrong,
                _ => {
                    let error = Diagnostic::new("an epilogue multiplies only the output by a constant");
                    self.wrong(error.expected("the output and a number"), *at)
                }
            },
        }
    }

    fn twice(&mut self, at: At) -> Value {
        let name = self.output().map_or_else(String::new, |output| output.name.clone());
        let error =
            Diagnostic::new(format!("the epilogue uses `{name}` twice")).expected(format!("exactly one `{name}`"));
        self.wrong(error, at)
    }

    /// The indices of the output must be those of its declaration.
    fn output_index(&mut self, access: &Access) {
        let Some(output) = self.output() else { return };
        let expected: Vec<&str> = output.shape.iter().map(|&dimension| self.axes.of(dimension)).collect();
        if !access.index.iter().map(|name| name.text.as_str()).eq(expected.iter().copied()) {
            let error = Diagnostic::new(format!("indices of `{}` do not match its declaration", output.name))
                .expected(format!("`{}[{}]`", output.name, expected.join(", ")));
            self.errors.push(error.at(access.at));
        }
    }

    /// `name[n]` or `name[n, m]`, declared or not.
    fn operand(&mut self, access: &Access) -> Value {
        let name = &access.name.text;
        let mut shape = Vec::new();
        for index in &access.index {
            let dimension = Dimension::ALL.into_iter().find(|&dimension| *self.axes.of(dimension) == index.text);
            match dimension {
                Some(Dimension::K) if !self.operands.is_declared(name) => {
                    let names = [self.axes.n.as_str(), self.axes.m.as_str()];
                    let error = Diagnostic::new(format!("index `{}` is summed over", index.text))
                        .expected(quoted(names, "or"))
                        .found(format!("`{}`", index.text));
                    return self.wrong(error.help("an epilogue sees only the sum"), index.at);
                }
                Some(dimension) => shape.push(dimension),
                None if self.operands.axes.is_none() || self.ast.lost.contains(&index.text) => return Value::Wrong,
                None => {
                    let names = [self.axes.n.as_str(), self.axes.m.as_str()];
                    let error = Diagnostic::new(format!("unknown index `{}`", index.text))
                        .expected(quoted(names, "or"))
                        .found(format!("`{}`", index.text))
                        .maybe_help(did_you_mean(&index.text, names));
                    return self.wrong(error, index.at);
                }
            }
        }
        let layout = self.output().map_or(Layout::FeatureMajor, Operand::layout);
        let dtype = self.output().map_or(DType::F32, |output| output.dtype);
        let known = self.operands.extras.iter().map(|extra| &extra.operand).chain(&self.implicit);
        let declared = known.into_iter().find(|operand| operand.name == *name).cloned();
        let operand = match declared {
            Some(operand) => operand,
            None if self.ast.lost.contains(name) => return Value::Wrong,
            None if self.operands.is_declared(name) => {
                let error = Diagnostic::new(format!("`{name}` cannot be added in an epilogue"));
                return self.wrong(error.expected("an operand of shape `[N]`, `[N, M]` or `[M, N]`"), access.name.at);
            }
            None => {
                let operand = if shape == [Dimension::N] {
                    Operand { name: name.clone(), dtype: DType::F32, shape: vec![Dimension::N] }
                } else {
                    Operand::matrix(name, dtype, Dimension::N, layout)
                };
                if shape == operand.shape {
                    self.implicit.push(operand.clone());
                }
                operand
            }
        };
        if shape != operand.shape {
            let index: Vec<&str> = operand.shape.iter().map(|&dimension| self.axes.of(dimension)).collect();
            let error = Diagnostic::new(format!("indices of `{name}` do not match its shape"))
                .expected(format!("`{name}[{}]`, because `{operand}`", index.join(", ")))
                .help("declare it as an `input` for another shape or layout");
            return self.wrong(error, access.at);
        }
        let op = if operand.shape.len() == 1 { EpilogueOp::Bias } else { EpilogueOp::Residual };
        Value::Terms(vec![op(name.clone())])
    }

    /// A declared extra operand that no statement reads.
    fn unused(&mut self, ops: &[EpilogueOp]) {
        if !self.ast.lost.is_empty() || self.operands.axes.is_none() || !self.errors.is_empty() {
            return;
        }
        for extra in &self.operands.extras {
            let name = &extra.operand.name;
            let read = ops.iter().any(|op| matches!(op, EpilogueOp::Bias(n) | EpilogueOp::Residual(n) if n == name));
            if !read {
                let error = Diagnostic::new(format!("input `{name}` is never used"));
                self.errors.push(error.help("add it in an epilogue, or remove its declaration").at(extra.at));
            }
        }
    }
}
