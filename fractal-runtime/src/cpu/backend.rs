//! The CPU as a backend: a packed weight -> the plan that is expected to be fastest for the tokens at hand.
//!
//! A weight can run as its own tiles, or as those of a coarser pattern with the finer zeros stored (2:4 inside tiles, say),
//! up to one dense tile. Which is faster depends on the tokens, so each plan is made when it is first chosen.

use super::cost::{PlanShape, seconds};
use super::epilogue::{Epilogue, EpilogueOp};
use super::execute;
use super::plan::ValidPlan;
use super::record::record;
use crate::backend::{Backend, Compiled, Inputs, Loaded, lower_checked};
use crate::error::Error;
use crate::gemm::Gemm;
use crate::prune::Pruned;
use crate::tensor::Tensor;
use fractal_dsl::pattern::{Packed, Pattern};
use fractal_sched::loop_ir::{Expr, Stmt};
use fractal_sched::{EpilogueStep, Form, LoopIr};
use std::sync::{Arc, OnceLock};

/// The CPU backend.
#[derive(Clone, Copy, Debug)]
pub struct CpuBackend {
    threads: usize,
}

impl CpuBackend {
    /// On at most `threads` cores; 0 counts as 1.
    pub fn new(threads: usize) -> CpuBackend {
        CpuBackend { threads: threads.max(1) }
    }
}

impl Backend for CpuBackend {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn compile(&self, gemm: &Gemm) -> Result<Arc<dyn Compiled>, Error> {
        let mut candidates = Vec::new();
        let mut pattern = Some(gemm.pattern().executed());
        while let Some(current) = pattern {
            let coarse = Gemm::new(current.clone(), gemm.dtype());
            let ir = lower_checked(&coarse, Form::Condensed, 1)?;
            pattern = current.coarser();
            candidates.push(Candidate { rows: tile_rows(&ir.body).unwrap_or(1), pattern: current, ir });
        }
        let compiled = CpuKernel { candidates, gemm: gemm.clone(), threads: self.threads };
        Ok(Arc::new(CpuCompiled(Arc::new(compiled))))
    }
}

/// One way to run the weight.
struct Candidate {
    pattern: Pattern,
    ir: LoopIr,
    /// Rows that keep the same columns.
    rows: usize,
}

struct CpuKernel {
    /// From the pattern itself to ever coarser ones.
    candidates: Vec<Candidate>,
    gemm: Gemm,
    threads: usize,
}

struct CpuCompiled(Arc<CpuKernel>);

impl Compiled for CpuCompiled {
    fn load(&self, weight: &Pruned) -> Result<Arc<dyn Loaded>, Error> {
        let kernel = Arc::clone(&self.0);
        let (n, k) = (weight.pattern().n(), weight.pattern().k());
        let own = weight.packed().values.len();
        // A coarser pattern keeps its slots; where a ragged level has none, as many more as its finer skips drop.
        let shapes = kernel.candidates.iter().map(|candidate| {
            let slots = candidate.pattern.format().slots;
            let finest = candidate.pattern == *weight.packed_pattern();
            let kept = if finest { own } else { slots.unwrap_or_else(|| (own * 2).min(n * k)) };
            PlanShape { n, k, rows: candidate.rows, kept: kept.min(n * k) }
        });
        let shapes = shapes.collect();
        let plans = kernel.candidates.iter().map(|_| OnceLock::new()).collect();
        let weight = weight.clone();
        let loaded = CpuWeight { kernel, shapes, plans, weight };
        // The plan for large m is made now, so that the first call is not the slow one.
        loaded.plan(loaded.choose(TYPICAL_TOKENS))?;
        Ok(Arc::new(loaded))
    }
}

/// Tokens of a batch for which a plan is made when the weight is loaded.
const TYPICAL_TOKENS: usize = 512;

struct CpuWeight {
    kernel: Arc<CpuKernel>,
    shapes: Vec<PlanShape>,
    plans: Vec<OnceLock<ValidPlan>>,
    weight: Pruned,
}

impl CpuWeight {
    /// The candidate with the least expected time for m tokens.
    fn choose(&self, m: usize) -> usize {
        let time = |shape: &PlanShape| seconds(shape, m, self.kernel.gemm.dtype(), self.kernel.threads);
        let times: Vec<f64> = self.shapes.iter().map(time).collect();
        (0..times.len()).min_by(|&a, &b| times[a].total_cmp(&times[b])).unwrap_or(0)
    }

    fn plan(&self, candidate: usize) -> Result<&ValidPlan, Error> {
        if let Some(plan) = self.plans[candidate].get() {
            return Ok(plan);
        }
        let Candidate { pattern, ir, .. } = &self.kernel.candidates[candidate];
        let plan = if candidate == 0 {
            record(ir, self.weight.packed(), self.weight.dtype())?
        } else {
            record(ir, &self.repacked(candidate, pattern)?, self.weight.dtype())?
        };
        let plan = plan.validate()?;
        Ok(self.plans[candidate].get_or_init(|| plan))
    }

    /// The weight packed to a coarser pattern, with the finer zeros stored.
    fn repacked(&self, candidate: usize, pattern: &Pattern) -> Result<Packed<f32>, Error> {
        let packed = self.weight.packed();
        let mut selection = packed.selection();
        for finer in &self.kernel.candidates[..candidate] {
            selection = finer.pattern.coarser_selection(&selection);
        }
        Ok(pattern.pack(&selection, &packed.unpack()).map_err(crate::prune::PruneError::from)?)
    }
}

impl Loaded for CpuWeight {
    fn run(&self, inputs: &Inputs<'_>, y: &mut Tensor) -> Result<(), Error> {
        let mut candidate = self.choose(inputs.m);
        // Zero times an infinity is no zero: stored zeros must not meet activations that the pattern drops.
        if candidate != 0 && !inputs.x.is_finite() {
            candidate = 0;
        }
        let ops = self.kernel.gemm.steps().iter().map(|step| match *step {
            EpilogueStep::Bias(b) => EpilogueOp::Bias(inputs.bias[b]),
            EpilogueStep::Residual(r) => EpilogueOp::Residual(inputs.residual[r].view()),
            EpilogueStep::Relu => EpilogueOp::Relu,
            EpilogueStep::Gelu => EpilogueOp::Gelu,
            EpilogueStep::Silu => EpilogueOp::Silu,
            EpilogueStep::Scale(bits) => EpilogueOp::Scale(f32::from_bits(bits)),
        });
        let epilogue = Epilogue::new(ops);
        execute(self.plan(candidate)?, inputs.x.view(), y.view_mut(), &epilogue, self.kernel.threads)?;
        Ok(())
    }

    fn kernel(&self, m: usize) -> String {
        let candidate = self.choose(m);
        let rows = self.shapes[candidate].rows;
        let name = if rows > 1 { format!("cpu tiles of {rows} rows") } else { "cpu rows".into() };
        match candidate {
            0 => name,
            last if last + 1 == self.shapes.len() => "cpu dense: expected faster than the pattern here".into(),
            _ => format!("{name}, finer zeros stored: expected faster than skipping them"),
        }
    }
}

/// Rows of the tile multiplication, where there is one.
fn tile_rows(stmts: &[Stmt]) -> Option<usize> {
    stmts.iter().find_map(|stmt| match stmt {
        Stmt::For { body, .. } | Stmt::If { body, .. } => tile_rows(body),
        Stmt::Mma { weights, .. } => weights.rows.iter().try_fold(1, |rows, l| match l.extent {
            Expr::Int(extent) => Some(rows * extent as usize),
            _ => None,
        }),
        _ => None,
    })
}
