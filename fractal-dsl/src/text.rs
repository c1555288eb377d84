//! The canonical text of a program.

use crate::program::{Dim, Dimension, EpilogueOp, Operand, Parts, Program};
use std::fmt;

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.docs {
            writeln!(f, "///{}{line}", if line.is_empty() { "" } else { " " })?;
        }
        if let Some(name) = &self.name {
            write!(f, "gemm {name}")?;
        }
        let dims = Dimension::ALL.map(|dimension| match self.dim(dimension) {
            Dim::Runtime => dimension.to_string(),
            Dim::Fixed(size) => format!("{dimension} = {size}"),
            Dim::Const(text) => format!("{dimension} = {{ {text} }}"),
        });
        writeln!(f, "<{}> {{", dims.join(", "))?;
        let roles = [("weight", &self.weight), ("input", &self.input), ("output", &self.output)];
        for (role, operand) in roles.into_iter().chain(self.extras.iter().map(|extra| ("input", extra))) {
            writeln!(f, "    {role} {operand};")?;
        }
        writeln!(f, "    {};", self.contraction())?;
        if !self.epilogue.is_empty() {
            writeln!(f, "    {} = {};", self.output.name, self.epilogue_text())?;
        }
        if !self.directives.is_empty() {
            writeln!(f, "    schedule {{")?;
            for directive in &self.directives {
                writeln!(f, "        {directive};")?;
            }
            writeln!(f, "    }}")?;
        }
        f.write_str("}\n")
    }
}

impl fmt::Display for Operand {
    /// As declared: `w: bf16[N, K]`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shape: Vec<&str> = self.shape.iter().map(|dimension| dimension.name()).collect();
        write!(f, "{}: {}[{}]", self.name, self.dtype, shape.join(", "))
    }
}

impl Parts {
    fn contraction(&self) -> String {
        let [y, w, x] = [&self.output, &self.weight, &self.input].map(|operand| self.access(operand));
        format!("{y} += {w} * {x}")
    }

    /// `name[i, j]` with the indices of the operand's dimensions.
    fn access(&self, operand: &Operand) -> String {
        let index: Vec<&str> = operand.shape.iter().map(|&dimension| self.axes.of(dimension)).collect();
        format!("{}[{}]", operand.name, index.join(", "))
    }

    /// The right side of one statement that holds the whole epilogue.
    fn epilogue_text(&self) -> String {
        let mut text = self.output.name.clone();
        let mut is_sum = false;
        for op in &self.epilogue {
            let adds = matches!(op, EpilogueOp::Bias(_) | EpilogueOp::Residual(_));
            text = match op {
                EpilogueOp::Bias(name) | EpilogueOp::Residual(name) => {
                    match self.extras.iter().find(|extra| extra.name == *name) {
                        Some(extra) => format!("{text} + {}", self.access(extra)),
                        None => format!("{text} + {name}[?]"),
                    }
                }
                EpilogueOp::Relu => format!("relu({text})"),
                EpilogueOp::Gelu => format!("gelu({text})"),
                EpilogueOp::Silu => format!("silu({text})"),
                EpilogueOp::Scale(factor) if is_sum => format!("({text}) * {:?}", factor.0),
                EpilogueOp::Scale(factor) => format!("{text} * {:?}", factor.0),
            };
            is_sum = adds;
        }
        text
    }
}
