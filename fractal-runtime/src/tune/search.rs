//! The measuring part of a search: candidates in their order, prepared beside it on other threads -> what was measured.

use super::candidates::Candidate;
use super::measure::{Reference, cpu_time, on_cpu, on_gpu};
use super::prepare::{Common, Prepared, Ready};
use super::record::{Outcome, Record};
use super::stopwatch::Stopwatch;
use super::tuner::{Event, Measured, Settings, Stop, TuneError, Tuner};
use crate::device::Layer;
use crate::gemm::Gemm;
use fractal_sched::codegen::KernelConfig;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

/// What is kept of a measured one, to measure it again.
struct Loaded {
    /// In `measured`.
    at: usize,
    layer: Layer,
    gemm: Gemm,
    /// Of a GPU.
    config: Option<KernelConfig>,
}

struct Progress {
    patterns: usize,
    /// Since the last new member of the front.
    since: usize,
}

pub(super) struct Search<'a, 'b> {
    tuner: &'a Tuner,
    common: &'a Common<'a>,
    /// Made for the first measurement.
    watch: Option<Stopwatch>,
    measured: Vec<Measured>,
    kept: Vec<Loaded>,
    listen: &'b mut dyn FnMut(Event<'_>) -> bool,
}

impl<'a, 'b> Search<'a, 'b> {
    /// Nothing is measured yet.
    pub fn new(
        tuner: &'a Tuner,
        common: &'a Common<'a>,
        listen: &'b mut dyn FnMut(Event<'_>) -> bool,
    ) -> Search<'a, 'b> {
        Search { tuner, common, watch: None, measured: Vec::new(), kept: Vec::new(), listen }
    }

    /// What was measured.
    pub fn measured(self) -> Vec<Measured> {
        self.measured
    }

    /// Measures the candidates until an end comes.
    pub fn run(&mut self, candidates: &[Candidate], settings: &Settings, begin: Instant) -> Result<Stop, TuneError> {
        let candidates = &candidates[..settings.patterns.min(candidates.len())];
        let deadline = settings.time.mul_f64(0.9);
        let mut progress = Progress { patterns: 0, since: 0 };
        let stop = if self.tuner.gpu.is_some() {
            self.beside(candidates, settings, begin, &mut progress)?
        } else {
            // On a CPU, preparing would take from what is measured.
            let mut stop = None;
            for candidate in candidates {
                let prepared = self.common.prepare(&candidate.tiling, candidate.expected);
                stop = self.step(candidate, prepared, settings, begin, &mut progress)?;
                if stop.is_some() {
                    break;
                }
            }
            stop
        };
        let over = progress.patterns < candidates.len() && begin.elapsed() > deadline;
        Ok(stop.unwrap_or(if over { Stop::Time } else { Stop::Done }))
    }

    /// Prepares on threads of their own.
    fn beside(
        &mut self,
        candidates: &[Candidate],
        settings: &Settings,
        begin: Instant,
        progress: &mut Progress,
    ) -> Result<Option<Stop>, TuneError> {
        let (next, ended, longest) = (AtomicUsize::new(0), AtomicBool::new(false), AtomicU64::new(0));
        let (common, jobs) = (self.common, settings.jobs.max(1));
        std::thread::scope(|scope| {
            let (sender, receiver) = sync_channel::<(usize, Result<Prepared, String>)>(jobs);
            for _ in 0..jobs {
                let (sender, next, ended, longest) = (sender.clone(), &next, &ended, &longest);
                scope.spawn(move || {
                    loop {
                        // What cannot be ready in time is not begun.
                        let ready = begin.elapsed() + Duration::from_millis(longest.load(Ordering::Relaxed));
                        let at = next.fetch_add(1, Ordering::Relaxed);
                        if at >= candidates.len() || ended.load(Ordering::Relaxed) || ready > settings.time.mul_f64(0.9)
                        {
                            return;
                        }
                        let start = Instant::now();
                        let Candidate { tiling, expected, .. } = &candidates[at];
                        // A fault of one pattern is no fault of the search.
                        let prepared = catch_unwind(AssertUnwindSafe(|| common.prepare(tiling, *expected)));
                        let prepared = prepared.unwrap_or_else(|_| Err(format!("{tiling}: preparing it panicked")));
                        longest.fetch_max(start.elapsed().as_millis() as u64, Ordering::Relaxed);
                        if sender.send((at, prepared)).is_err() {
                            return;
                        }
                    }
                });
            }
            drop(sender);
            let result = loop {
                match receiver.recv_timeout(Duration::from_millis(200)) {
                    Ok((at, prepared)) => match self.step(&candidates[at], prepared, settings, begin, progress) {
                        Ok(None) => {}
                        end => break end,
                    },
                    Err(RecvTimeoutError::Timeout) if (self.listen)(Event::Tick) => {}
                    Err(RecvTimeoutError::Timeout) => break Ok(Some(Stop::Asked)),
                    Err(RecvTimeoutError::Disconnected) => break Ok(None),
                }
            };
            // Those that wait to send end, too.
            ended.store(true, Ordering::Relaxed);
            drop(receiver);
            result
        })
    }

    /// Measures one tiling; why to end, if it is time to.
    fn step(
        &mut self,
        candidate: &Candidate,
        prepared: Result<Prepared, String>,
        settings: &Settings,
        begin: Instant,
        progress: &mut Progress,
    ) -> Result<Option<Stop>, TuneError> {
        progress.patterns += 1;
        let (on, better) = self.one(candidate, prepared, progress.patterns)?;
        progress.since = if better || candidate.must { 0 } else { progress.since + 1 };
        Ok(match () {
            () if !on => Some(Stop::Asked),
            () if begin.elapsed() > settings.time => Some(Stop::Time),
            () if progress.since >= settings.patience => Some(Stop::Patience),
            () => None,
        })
    }

    /// Measures the schedules of one tiling: whether to go on, and whether it is a new member of the front.
    fn one(
        &mut self,
        candidate: &Candidate,
        prepared: Result<Prepared, String>,
        patterns: usize,
    ) -> Result<(bool, bool), TuneError> {
        let prepared = match prepared {
            Ok(prepared) => prepared,
            Err(reason) => return Ok(((self.listen)(Event::Failed(&reason)), false)),
        };
        let (mut on, mut better) = (true, false);
        for Ready { planned, mut record, run, known: reused } in prepared.ready {
            let mut loaded = None;
            if let (Some((layer, gemm, config)), Some(reference)) = (run, &prepared.reference) {
                record.outcome = self.outcome(&layer, &gemm, config.as_ref(), reference, &mut record)?;
                loaded = Some((layer, gemm, config));
            }
            if !reused {
                self.tuner.database.append(record.clone())?;
            }
            let measured = Measured {
                tiling: candidate.tiling.to_string(),
                pattern: planned.pattern,
                fixed: candidate.fixed,
                rules: planned.rules,
                reused,
                record,
            };
            let beats = |m: &Measured| match (m.point(), measured.point()) {
                (Some((r, t)), Some((own, time))) => r >= own && t <= time,
                _ => false,
            };
            let new = measured.point().is_some() && !self.measured.iter().any(beats);
            better |= new;
            if let Some((layer, gemm, config)) = loaded.filter(|_| new || candidate.fixed) {
                self.kept.push(Loaded { at: self.measured.len(), layer, gemm, config });
            }
            self.measured.push(measured);
            self.forget();
            let last = self.measured.len() - 1;
            on &= (self.listen)(Event::Measured(&self.measured[last], patterns));
            if !on {
                break;
            }
        }
        Ok((on, better))
    }

    fn outcome(
        &mut self,
        layer: &Layer,
        gemm: &Gemm,
        config: Option<&KernelConfig>,
        reference: &Reference,
        record: &mut Record,
    ) -> Result<Outcome, TuneError> {
        let (Some((gpu, _)), Some(config)) = (&self.tuner.gpu, config) else {
            return Ok(on_cpu(gemm, layer, self.common.inputs, reference));
        };
        if self.watch.is_none() {
            let inputs = self.common.inputs;
            self.watch = Some(Stopwatch::new(gpu, gemm, &inputs.x, &inputs.extras)?);
        }
        let Some(watch) = &self.watch else { unreachable!("it was just made") };
        match on_gpu(watch, layer, config, reference) {
            Ok(outcome) => Ok(outcome),
            Err(error) => {
                // The next search passes it over.
                record.outcome = Outcome::Failed { reason: error.to_string() };
                self.tuner.database.append(record.clone())?;
                Err(error.into())
            }
        }
    }

    /// Frees weights that will not be measured again.
    fn forget(&mut self) {
        let points: Vec<(f64, f64)> = self.measured.iter().filter_map(Measured::point).collect();
        let measured = &self.measured;
        self.kept.retain(|loaded| {
            let Some((r, t)) = measured[loaded.at].point() else { return false };
            // Times of the search are that uncertain.
            measured[loaded.at].fixed || !points.iter().any(|(more, less)| *more >= r && *less < 0.97 * t)
        });
    }

    /// Times what may be on the front once more, when nothing else runs: in turns, the median of three.
    pub fn again(&mut self) -> Result<(), TuneError> {
        let mut times: Vec<Vec<f64>> = vec![Vec::new(); self.kept.len()];
        for _ in 0..3 {
            for (loaded, times) in self.kept.iter().zip(&mut times) {
                let Loaded { layer, gemm, config, .. } = loaded;
                times.extend(match (&self.watch, layer.cuda(), config) {
                    (Some(watch), Some(weight), Some(config)) => watch.time(weight, config).ok(),
                    (None, None, None) => cpu_time(gemm, layer, self.common.inputs).ok(),
                    _ => None,
                });
            }
        }
        for (loaded, mut times) in self.kept.iter().zip(times) {
            times.sort_by(f64::total_cmp);
            let Some(&median) = times.get(times.len() / 2) else { continue };
            let record = &mut self.measured[loaded.at].record;
            if let Outcome::Timed { microseconds, .. } = &mut record.outcome {
                *microseconds = median;
                self.tuner.database.append(record.clone())?;
            }
        }
        Ok(())
    }
}
