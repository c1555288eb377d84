//! Schedule of a program -> what it asks of the kernel; and back, to print what was chosen as DSL text.

use crate::codegen::KernelConfig;
use fractal_dsl::{AxisNames, Dimension, Directive, Intrinsic, Level, Memory, Program};
use serde::{Deserialize, Serialize};
use std::fmt;

/// What a schedule asks of the kernel that runs it; what it leaves open is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KernelRequest {
    /// The instruction: `tensorize(…, wgmma)`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub intrinsic: Option<Intrinsic>,
    /// Rows of W a tile: `tile(n, 128)`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows: Option<usize>,
    /// Tokens a tile: `tile(m, 256)`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<usize>,
    /// Kept columns a step: `tile(k, 64)`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<usize>,
    /// Stages of asynchronous copies: `pipeline(4)`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stages: Option<usize>,
    /// Blocks of a cluster that share the steps of a tile: `cluster(k, 2)`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub split: Option<usize>,
    /// Blocks of a cluster that share the weights of a tile, each with tokens of its own: `cluster(m, 2)`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<usize>,
    /// Whether the weights of a tile stay in shared memory while tokens pass: `resident(w)`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resident: Option<bool>,
    /// Columns that follow one another and are copied as one box of X: `condense(x, 16)`; 1: row by row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<usize>,
}

impl KernelRequest {
    /// What `program` asks for.
    ///
    /// # Errors
    /// A sentence about a statement that no generated kernel can follow: expected, found.
    pub fn of(program: &Program) -> Result<KernelRequest, String> {
        let mut request = KernelRequest::default();
        let (axes, weight) = (program.axes(), &program.weight().name);
        // Of a loop: the dimensions that it runs over. Loops of a split or join are told by the schedule.
        let reduction = reduction_loops(program);
        for directive in program.directives() {
            match directive {
                Directive::Tile { axis, size } if *axis == axes.n => request.rows = Some(*size),
                Directive::Tile { axis, size } if *axis == axes.m => request.tokens = Some(*size),
                Directive::Tile { size, .. } => request.step = Some(*size),
                Directive::Condense { run, .. } => request.run = *run,
                Directive::Resident { .. } => request.resident = Some(true),
                Directive::Cluster { axis, size } if *axis == axes.m => request.share = Some(*size),
                Directive::Cluster { size, .. } => request.split = Some(*size),
                Directive::Pipeline { depth } => request.stages = Some(*depth),
                Directive::Tensorize { intrinsic, .. } => request.intrinsic = Some(*intrinsic),
                Directive::Bind { axis, level: Level::Block | Level::Warp | Level::Thread }
                    if reduction.contains(axis) =>
                {
                    return Err(format!(
                        "`{directive}`: expected a loop of {} or {}, found one of the reduction; \
                         `cluster({}, 2)` lets blocks share the steps of a tile",
                        axes.n, axes.m, axes.k
                    ));
                }
                Directive::Stage { operand, memory: Memory::Register } => {
                    let instead = if operand == weight {
                        format!("; `resident({weight})` keeps a tile of it there")
                    } else {
                        String::new()
                    };
                    return Err(format!(
                        "`{directive}`: expected shared memory, through which kernels bring `{operand}`, found registers{instead}"
                    ));
                }
                _ => {}
            }
        }
        Ok(request)
    }

    /// What a kernel answers to: everything said.
    pub fn of_config(config: &KernelConfig) -> KernelRequest {
        KernelRequest {
            intrinsic: Some(config.intrinsic),
            rows: Some(config.rows),
            tokens: Some(config.tokens),
            step: Some(config.step),
            stages: Some(config.stages),
            split: Some(config.split),
            share: Some(config.share),
            resident: Some(config.resident > 0),
            run: Some(config.column_run.max(1)),
        }
    }

    /// Whether nothing is asked.
    pub fn is_open(&self) -> bool {
        *self == KernelRequest::default()
    }

    /// Whether the kernel is one that was asked for.
    pub fn admits(&self, config: &KernelConfig) -> bool {
        let found = KernelRequest::of_config(config);
        fn fits<T: PartialEq>(asked: Option<T>, found: Option<T>) -> bool {
            asked.is_none() || asked == found
        }
        fits(self.intrinsic, found.intrinsic)
            && fits(self.rows, found.rows)
            && fits(self.tokens, found.tokens)
            && fits(self.step, found.step)
            && fits(self.stages, found.stages)
            && fits(self.split, found.split)
            && fits(self.share, found.share)
            && fits(self.resident, found.resident)
            && fits(self.run, found.run)
    }

    /// The statements that ask for this, for axes and operands of these names. What is not resident and not in a cluster
    /// needs no statement.
    pub fn directives(&self, axes: &AxisNames, weight: &str, input: &str) -> Vec<Directive> {
        let tile = |axis: &str, size: Option<usize>| size.map(|size| Directive::Tile { axis: axis.into(), size });
        let cluster = |axis: &str, size: Option<usize>| size.map(|size| Directive::Cluster { axis: axis.into(), size });
        let loops = || vec![axes.n.clone(), axes.m.clone(), axes.k.clone()];
        [
            tile(&axes.n, self.rows),
            tile(&axes.m, self.tokens),
            tile(&axes.k, self.step),
            self.run.map(|run| Directive::Condense { operand: input.into(), run: Some(run) }),
            self.resident.filter(|&resident| resident).map(|_| Directive::Resident { operand: weight.into() }),
            cluster(&axes.k, self.split),
            cluster(&axes.m, self.share),
            self.stages.map(|depth| Directive::Pipeline { depth }),
            self.intrinsic.map(|intrinsic| Directive::Tensorize { loops: loops(), intrinsic }),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

impl fmt::Display for KernelRequest {
    /// As statements of a schedule on axes n, m, k and operands w, x.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let statements = self.directives(&AxisNames::default(), "w", "x");
        let text: Vec<String> = statements.iter().map(ToString::to_string).collect();
        write!(f, "{}", if text.is_empty() { "nothing".into() } else { text.join("; ") })
    }
}

/// The reduction and all loops that come of it, by name.
fn reduction_loops(program: &Program) -> Vec<String> {
    let mut names = vec![program.axes().of(Dimension::K).to_string()];
    for directive in program.directives() {
        match directive {
            Directive::Split { axis, outer, inner, .. } if names.contains(axis) => {
                names.extend([outer.clone(), inner.clone()]);
            }
            Directive::Join { a, b, out } if names.contains(a) || names.contains(b) => names.push(out.clone()),
            _ => {}
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(schedule: &str) -> Program {
        Program::parse(&format!(
            "<M, N = 256, K = 512> {{ weight w: f16[N, K]; input x: f16[K, M]; output y: f16[N, M];
             y[n, m] += w[n, k] * x[k, m]; schedule {{ let (no, ni) = split(n, 128); skip(k, per = no, keep = 25%); {schedule} }} }}"
        ))
        .unwrap_or_else(|e| panic!("{e}"))
    }

    #[test]
    fn statements_are_read_and_written_back() {
        let text = "tile(n, 128); tile(m, 256); tile(k, 64); condense(x, 16); resident(w); cluster(k, 2); cluster(m, 1); \
                    pipeline(4); tensorize(n, m, k, wgmma)";
        let request = KernelRequest::of(&program(&format!("{text};"))).unwrap();
        assert_eq!(request.to_string(), text);
        let open = KernelRequest::of(&program("condense(x); bind(no, block); stage(w, shared);")).unwrap();
        assert!(open.is_open());
        assert_eq!(open.to_string(), "nothing");
    }

    #[test]
    fn what_no_kernel_follows_is_told() {
        let told = |schedule| KernelRequest::of(&program(schedule)).unwrap_err();
        assert_eq!(
            told("let (ko, ki) = split(k, 16); bind(ko, block);"),
            "`bind(ko, block)`: expected a loop of n or m, found one of the reduction; `cluster(k, 2)` lets blocks share \
             the steps of a tile"
        );
        assert_eq!(
            told("stage(w, register);"),
            "`stage(w, register)`: expected shared memory, through which kernels bring `w`, found registers; \
             `resident(w)` keeps a tile of it there"
        );
    }
}
