//! The CPU as a backend: a packed weight -> the plan that is expected to be fastest for the tokens at hand.
//!
//! A weight can run as its own tiles, or as those of a coarser pattern with the finer zeros stored (2:4 inside tiles, say),
//! or as the dense product. Which is faster depends on the tokens, so each plan is made when it is first chosen.

use super::cost::{PlanShape, Work, residue_seconds, seconds};
use super::dense::dense_and_check;
use super::epilogue::{Epilogue, EpilogueOp};
use super::execute::execute_in;
use super::plan::ValidPlan;
use super::raw::Isa;
use super::record::record;
use crate::backend::{Backend, Compiled, Inputs, Loaded, lower_checked};
use crate::error::Error;
use crate::gemm::Gemm;
use crate::prune::{Pruned, Residue};
use crate::tensor::Tensor;
use fractal_dsl::pattern::{Packed, Pattern, Step};
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
        while let Some(current) = pattern.filter(|p| p.steps().iter().any(|s| matches!(s, Step::Skip { .. }))) {
            // Coarse tiles that keep nearly everything are the dense product with more to look up.
            let slots = current.format().slots.unwrap_or(0);
            if !candidates.is_empty() && 4 * slots > 3 * current.n() * current.k() {
                break;
            }
            let coarse = Gemm::new(current.clone(), gemm.dtype());
            let ir = Box::new(lower_checked(&coarse, Form::Condensed, 1)?);
            pattern = current.coarser();
            candidates.push(Candidate::Tiles { rows: tile_rows(&ir.body).unwrap_or(1), pattern: current, ir });
        }
        candidates.push(Candidate::Dense);
        let compiled = CpuKernel { candidates, gemm: gemm.clone(), threads: self.threads };
        Ok(Arc::new(CpuCompiled(Arc::new(compiled))))
    }
}

/// One way to run the weight.
enum Candidate {
    /// Tiles of a pattern, finer zeros stored.
    Tiles {
        pattern: Pattern,
        ir: Box<LoopIr>,
        /// Rows that keep the same columns.
        rows: usize,
    },
    /// The library's product with all zeros stored.
    Dense,
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
        let work = kernel.candidates.iter().enumerate().map(|(number, candidate)| {
            let Candidate::Tiles { pattern, rows, .. } = candidate else { return Work::Dense { n, k } };
            // A coarser pattern keeps its slots; where a ragged level has none, as many more as its finer skips drop.
            let kept = if number == 0 { own } else { pattern.format().slots.unwrap_or(own * 2) };
            Work::Tiles(PlanShape { n, k, rows: *rows, kept: kept.min(n * k) })
        });
        let work = work.collect();
        let plans = kernel.candidates.iter().map(|_| OnceLock::new()).collect();
        let loaded = CpuWeight { kernel, work, plans, weight: weight.clone() };
        // The plan for large m is made now, so that the first call is not the slow one.
        loaded.plan(loaded.choose(TYPICAL_TOKENS))?;
        Ok(Arc::new(loaded))
    }
}

/// Tokens of a batch for which a plan is made when the weight is loaded.
const TYPICAL_TOKENS: usize = 512;

struct CpuWeight {
    kernel: Arc<CpuKernel>,
    /// What each candidate does.
    work: Vec<Work>,
    plans: Vec<OnceLock<Plan>>,
    weight: Pruned,
}

/// A candidate with the weight as it reads it.
enum Plan {
    Tiles(ValidPlan),
    Dense(Tensor),
}

impl CpuWeight {
    /// The candidate with the least expected time for m tokens.
    fn choose(&self, m: usize) -> usize {
        let (dtype, threads) = (self.kernel.gemm.dtype(), self.kernel.threads);
        // The dense product has the residue in its weight.
        let residue = residue_seconds(self.weight.residue().map_or(0, Residue::len), m, threads);
        let time =
            |work: &Work| seconds(work, m, dtype, threads) + if matches!(work, Work::Tiles(_)) { residue } else { 0.0 };
        let times: Vec<f64> = self.work.iter().map(time).collect();
        (0..times.len()).min_by(|&a, &b| times[a].total_cmp(&times[b])).unwrap_or(0)
    }

    fn plan(&self, candidate: usize) -> Result<&Plan, Error> {
        if let Some(plan) = self.plans[candidate].get() {
            return Ok(plan);
        }
        let plan = match &self.kernel.candidates[candidate] {
            Candidate::Dense => Plan::Dense(self.weight.dense()),
            Candidate::Tiles { ir, .. } if candidate == 0 => Plan::Tiles(self.valid(ir, self.weight.packed())?),
            Candidate::Tiles { ir, pattern, .. } => Plan::Tiles(self.valid(ir, &self.repacked(candidate, pattern)?)?),
        };
        Ok(self.plans[candidate].get_or_init(|| plan))
    }

    fn valid(&self, ir: &LoopIr, packed: &Packed<f32>) -> Result<ValidPlan, Error> {
        Ok(record(ir, packed, self.weight.dtype())?.validate_with(self.weight.residue())?)
    }

    /// The weight packed to a coarser pattern, with the finer zeros stored.
    fn repacked(&self, candidate: usize, pattern: &Pattern) -> Result<Packed<f32>, Error> {
        let packed = self.weight.packed();
        let mut selection = packed.selection();
        for finer in &self.kernel.candidates[..candidate] {
            if let Candidate::Tiles { pattern, .. } = finer {
                selection = pattern.coarser_selection(&selection);
            }
        }
        Ok(pattern.pack(&selection, &packed.unpack()).map_err(crate::prune::PruneError::from)?)
    }

    /// Runs a candidate, and tells whether the rows of X that it read are finite.
    fn run_candidate(
        &self,
        candidate: usize,
        x: &Tensor,
        y: &mut Tensor,
        epilogue: &Epilogue<'_>,
    ) -> Result<bool, Error> {
        let threads = self.kernel.threads;
        Ok(match self.plan(candidate)? {
            Plan::Tiles(plan) => execute_in(Isa::best(), plan, x.view(), y.view_mut(), epilogue, threads)?,
            Plan::Dense(weight) => dense_and_check(weight.view(), x.view(), y.view_mut(), epilogue, threads)?,
        })
    }
}

impl Loaded for CpuWeight {
    fn run(&self, inputs: &Inputs<'_>, y: &mut Tensor) -> Result<(), Error> {
        let ops = self.kernel.gemm.steps().iter().map(|step| match *step {
            EpilogueStep::Bias(b) => EpilogueOp::Bias(inputs.bias[b]),
            EpilogueStep::Residual(r) => EpilogueOp::Residual(inputs.residual[r].view()),
            EpilogueStep::Relu => EpilogueOp::Relu,
            EpilogueStep::Gelu => EpilogueOp::Gelu,
            EpilogueStep::Silu => EpilogueOp::Silu,
            EpilogueStep::Scale(bits) => EpilogueOp::Scale(f32::from_bits(bits)),
        });
        let epilogue = Epilogue::new(ops);
        let candidate = self.choose(inputs.m);
        // Zero times an infinity is no zero: stored zeros must not meet activations that the pattern drops. That X is
        // finite shows while it runs, at no cost; where it is not, the result is made anew.
        if !self.run_candidate(candidate, inputs.x, y, &epilogue)? && candidate != 0 {
            self.run_candidate(0, inputs.x, y, &epilogue)?;
        }
        Ok(())
    }

    fn kernel(&self, m: usize) -> String {
        let candidate = self.choose(m);
        let name = match (candidate, self.work[candidate]) {
            (0, Work::Dense { .. }) => "cpu dense".into(),
            (_, Work::Dense { .. }) => "cpu dense: expected faster than the pattern here".into(),
            (0, Work::Tiles(PlanShape { rows: 1, .. })) => "cpu rows".into(),
            (0, Work::Tiles(PlanShape { rows, .. })) => format!("cpu tiles of {rows} rows"),
            (_, Work::Tiles(PlanShape { rows, .. })) => {
                format!("cpu tiles of {rows} rows, finer zeros stored: expected faster than skipping them")
            }
        };
        match (self.weight.residue(), self.work[candidate]) {
            (Some(residue), Work::Tiles(_)) => format!("{name}; {} elements restored", residue.len()),
            _ => name,
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
