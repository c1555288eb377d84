//! A tiling -> pruned, planned, packed, compiled and loaded: everything that a measurement needs and that can run beside one.

use super::measure::{Inputs, Reference};
use super::model::Work;
use super::record::Record;
use super::schedules::{Model, Planned};
use super::space::Tiling;
use super::{Context, Database, Outcome};
use crate::device::{Device, Layer};
use crate::gemm::Gemm;
use crate::prune::{Pruned, prune_by};
use fractal_dsl::pattern::Pattern;
use fractal_dsl::{Directive, Program};
use fractal_sched::KernelRequest;
use fractal_sched::codegen::KernelConfig;

/// What all preparations of one problem have in common.
pub(super) struct Common<'a> {
    pub device: &'a Device,
    /// Of a GPU.
    pub model: Option<&'a Model>,
    pub database: &'a Database,
    pub context: &'a Context,
    /// The product with any pattern of the right size.
    pub gemm: &'a Gemm,
    pub weights: &'a [f32],
    pub scores: &'a [f32],
    pub inputs: &'a Inputs,
    /// Schedules a pattern.
    pub schedules: usize,
}

/// A weight on a device, and the product that it was loaded for.
type Ran = (Layer, Gemm);

/// One schedule of a tiling.
pub(super) struct Ready {
    pub planned: Planned,
    pub record: Record,
    /// The layer, and on a GPU its kernel; nothing where the record is complete.
    pub run: Option<(Layer, Gemm, Option<KernelConfig>)>,
    /// Whether the record is the database's.
    pub known: bool,
}

/// A tiling with its schedules.
pub(super) struct Prepared {
    pub ready: Vec<Ready>,
    pub reference: Option<Reference>,
}

impl Common<'_> {
    /// Everything for one tiling, or why it cannot be had.
    pub fn prepare(&self, tiling: &Tiling, expected: f64) -> Result<Prepared, String> {
        let told = |error: &dyn std::fmt::Display| format!("{tiling}: {error}");
        let (n, k) = (self.gemm.pattern().n(), self.gemm.pattern().k());
        let pattern = tiling.pattern(n, k).map_err(|error| told(&error))?;
        let gemm = self.gemm.clone().with_pattern(pattern.clone());
        let own = Planned { pattern, request: KernelRequest::default(), expected, rules: Vec::new() };
        let mut planned = match self.model {
            Some(model) => {
                let mut planned = model.plans(&gemm, self.inputs.m, self.schedules);
                // What the runtime would choose by itself.
                planned.insert(0, own);
                planned
            }
            // Expectations of a CPU are no times.
            None => vec![Planned { expected: 0.0, ..own }],
        };
        let mut ready = Vec::new();
        planned.retain(|plan| {
            let found = directives(&plan.pattern)
                .and_then(|directives| self.database.find(self.context, &directives, &plan.request));
            let Some(record) = found else { return true };
            ready.push(Ready { planned: plan.clone(), record, run: None, known: true });
            false
        });
        if planned.is_empty() {
            return Ok(Prepared { ready, reference: None });
        }
        let pruned = prune_by(gemm.pattern(), self.weights, gemm.dtype(), self.scores).map_err(|error| told(&error))?;
        let reference = Reference::new(&gemm, &pruned, self.inputs);
        // Weights that are loaded already: by pattern, instruction and rows.
        let mut loaded: Vec<(Pattern, KernelRequest, Result<Ran, String>)> = Vec::new();
        for plan in planned {
            let tables = KernelRequest {
                intrinsic: plan.request.intrinsic,
                rows: plan.request.rows,
                ..KernelRequest::default()
            };
            let at = loaded.iter().position(|(pattern, request, _)| *pattern == plan.pattern && *request == tables);
            let at = at.unwrap_or_else(|| {
                let gemm = gemm.clone().with_pattern(plan.pattern.clone()).with_request(tables);
                let layer = self.load(&gemm, &pruned);
                loaded.push((plan.pattern.clone(), tables, layer.map(|layer| (layer, gemm))));
                loaded.len() - 1
            });
            let new = self.ready(plan, &pruned, &loaded[at].2);
            // The kernel that the runtime would choose is often the cheapest of the plans, too.
            let config = |ready: &Ready| ready.run.as_ref().and_then(|(_, _, config)| config.clone());
            if config(&new).is_none() || !ready.iter().any(|there| config(there) == config(&new)) {
                ready.push(new);
            }
        }
        Ok(Prepared { ready, reference: Some(reference) })
    }

    fn load(&self, gemm: &Gemm, pruned: &Pruned) -> Result<Layer, String> {
        let packed;
        let weight = if gemm.pattern() == pruned.pattern() {
            pruned
        } else {
            packed = pruned.with_pattern(gemm.pattern()).map_err(|error| error.to_string())?;
            &packed
        };
        self.device.compile(gemm).and_then(|kernel| kernel.load(weight)).map_err(|error| error.to_string())
    }

    /// One schedule on a loaded weight, its kernel compiled.
    fn ready(&self, planned: Planned, pruned: &Pruned, loaded: &Result<Ran, String>) -> Ready {
        let kept = pruned.kept() as f64 / (pruned.pattern().n() * pruned.pattern().k()) as f64;
        let record = Record {
            context: self.context.clone(),
            pattern: directives(&planned.pattern).unwrap_or_default(),
            request: planned.request,
            retained: pruned.retained(),
            density: kept,
            expected: planned.expected,
            outcome: Outcome::Failed { reason: "not measured".into() },
        };
        let failed = |planned: Planned, record: Record, reason: String| Ready {
            planned,
            record: Record { outcome: Outcome::Failed { reason }, ..record },
            run: None,
            known: false,
        };
        let (layer, gemm) = match loaded {
            Ok(loaded) => loaded.clone(),
            Err(reason) => return failed(planned, record, reason.clone()),
        };
        let (Some(weight), Some(model)) = (layer.cuda(), self.model) else {
            return Ready { planned, record, run: Some((layer, gemm, None)), known: false };
        };
        let m = self.inputs.m;
        let config = if planned.request.is_open() {
            weight.config(m).map_err(|error| error.to_string())
        } else {
            let (n, k) = (self.gemm.pattern().n(), self.gemm.pattern().k());
            let time = |config: &KernelConfig| {
                let tables = weight.tables();
                let work = Work { config: config.clone(), load: tables.load, columns: tables.columns, n, k, m };
                model.calibration.microseconds(&work, model.gpu)
            };
            let configs = weight.configs_for(planned.request, m).into_iter();
            let best = configs.min_by(|a, b| time(a).total_cmp(&time(b)));
            best.ok_or_else(|| format!("no kernel of this weight is {}", planned.request))
        };
        let compiled = config.and_then(|config| match weight.prepare_config(&config) {
            Ok(_) => Ok(config),
            Err(error) => Err(error.to_string()),
        });
        match compiled {
            Ok(config) => Ready { planned, record, run: Some((layer, gemm, Some(config))), known: false },
            Err(reason) => failed(planned, record, reason),
        }
    }
}

/// The statements that make a pattern.
pub(super) fn directives(pattern: &Pattern) -> Option<Vec<Directive>> {
    let program = Program::for_pattern(pattern, fractal_dsl::DType::F32).ok()?;
    Some(program.directives().to_vec())
}
