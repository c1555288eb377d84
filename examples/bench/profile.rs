//! What bounds a call: bytes that must move and multiplications that are needed, against what the device was measured to do.

use std::time::Duration;

use fractal::cuda::GraphKernel;
use serde_json::{Value, json};

use crate::args::Shape;
use crate::device::Host;

/// What a device does at best, measured in the same run.
#[derive(Clone, Copy, Debug)]
pub struct Rates {
    /// Bytes read and written a second, while memory is copied.
    pub copied: f64,
    /// Operations a second of the fastest dense product, each multiply-add two.
    pub dense: f64,
    pub multiprocessors: u32,
}

/// What one call puts on the device.
#[derive(Clone, Debug)]
pub struct Launches {
    pub kernels: Vec<GraphKernel>,
    /// The weight there, lists included, bytes.
    pub weight_bytes: usize,
    /// Weights that are multiplied, kept or not.
    pub stored: usize,
    /// Whether they run on sparse tensor cores, at twice the rate.
    pub two_of_four: bool,
}

/// One side of a row.
#[derive(Clone, Debug)]
pub struct Profile {
    pub rates: Rates,
    pub launches: Launches,
    /// Bytes of the packed weight with its indices, X and Y, each once.
    pub least_bytes: usize,
    /// Operations of the kept weights.
    pub needed: f64,
    /// Operations of the stored weights.
    pub executed: f64,
    pub time: Duration,
    /// Of the CPU.
    pub host: Option<Host>,
}

impl Profile {
    /// `kept` of the weights take `packed_bytes`; the device reads and writes `element` bytes a value.
    pub fn new(
        (shape, element): (Shape, usize),
        (kept, packed_bytes): (usize, usize),
        (launches, rates): (Launches, Rates),
        (time, host): (Duration, Option<Host>),
    ) -> Profile {
        let Shape { n, k, m } = shape;
        let operations = |weights: usize| 2.0 * weights as f64 * m as f64;
        Profile {
            rates,
            least_bytes: packed_bytes + (n + k) * m * element,
            needed: operations(kept),
            executed: operations(launches.stored),
            launches,
            time,
            host,
        }
    }

    fn memory_us(&self) -> f64 {
        self.least_bytes as f64 / self.rates.copied * 1e6
    }

    fn compute_us(&self) -> f64 {
        let rate = if self.launches.two_of_four { 2.0 } else { 1.0 } * self.rates.dense;
        self.needed / rate * 1e6
    }

    /// The time that no kernel of its kind can beat, microseconds.
    pub fn bound_us(&self) -> f64 {
        self.memory_us().max(self.compute_us())
    }

    pub fn bound_by(&self) -> &'static str {
        if self.memory_us() > self.compute_us() { "memory" } else { "compute" }
    }

    /// The bound over the time.
    pub fn reached(&self) -> f64 {
        self.bound_us() / (self.time.as_secs_f64() * 1e6)
    }

    /// Rounds of blocks that fill the device.
    fn waves(&self, kernel: &GraphKernel) -> f64 {
        let at_once = self.rates.multiprocessors * kernel.blocks_per_sm.max(1);
        f64::from(kernel.grid.iter().product::<u32>()) / f64::from(at_once)
    }

    /// The block under a row.
    pub fn lines(&self, side: &str) -> Vec<String> {
        let host = self.host.map_or(String::new(), |Host { call, compile }| {
            let compile = compile.map_or(String::new(), |(compiled, read)| {
                let [compiled, read] = [compiled, read].map(|time| time.as_secs_f64() * 1e3);
                format!(", kernel compiled in {compiled:.0} ms, read from the cache in {read:.1} ms")
            });
            format!(", {:.1} us of CPU a call{compile}", call.as_secs_f64() * 1e6)
        });
        let first = format!(
            "  {side}: {:.1} % of the bound of {:.1} us ({}): at least {:.2} MB, {:.2} GFLOP needed, {:.2} executed, \
             weight {:.2} MB{host}",
            self.reached() * 100.0,
            self.bound_us(),
            self.bound_by(),
            self.least_bytes as f64 / 1e6,
            self.needed / 1e9,
            self.executed / 1e9,
            self.launches.weight_bytes as f64 / 1e6,
        );
        let kernels = self.launches.kernels.iter().map(|kernel| {
            format!(
                "    {} blocks of {} threads, {} on each of {} multiprocessors, {:.2} waves; {} registers, \
                 {} B local, {} + {} B shared",
                kernel.grid.iter().product::<u32>(),
                kernel.block.iter().product::<u32>(),
                kernel.blocks_per_sm,
                self.rates.multiprocessors,
                self.waves(kernel),
                kernel.registers,
                kernel.local_bytes,
                kernel.static_shared_bytes,
                kernel.dynamic_shared_bytes,
            )
        });
        std::iter::once(first).chain(kernels).collect()
    }

    pub fn json(&self) -> Value {
        let kernels = self.launches.kernels.iter().map(|kernel| {
            json!({
                "grid": kernel.grid,
                "block": kernel.block,
                "registers": kernel.registers,
                "local_bytes": kernel.local_bytes,
                "static_shared_bytes": kernel.static_shared_bytes,
                "dynamic_shared_bytes": kernel.dynamic_shared_bytes,
                "blocks_per_sm": kernel.blocks_per_sm,
                "waves": self.waves(kernel),
            })
        });
        json!({
            "least_bytes": self.least_bytes,
            "weight_bytes": self.launches.weight_bytes,
            "needed_flop": self.needed,
            "executed_flop": self.executed,
            "bound_us": self.bound_us(),
            "bound_by": self.bound_by(),
            "bound_reached": self.reached(),
            "copied_gb_s": self.rates.copied / 1e9,
            "dense_tflop_s": self.rates.dense / 1e12,
            "multiprocessors": self.rates.multiprocessors,
            "host_us": self.host.map(|host| host.call.as_secs_f64() * 1e6),
            "compile_ms": self.host.and_then(|host| host.compile).map(|(compiled, _)| compiled.as_secs_f64() * 1e3),
            "cached_ms": self.host.and_then(|host| host.compile).map(|(_, read)| read.as_secs_f64() * 1e3),
            "kernels": kernels.collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(m: usize, two_of_four: bool) -> Profile {
        let kernel = GraphKernel {
            grid: [4, 33, 1],
            block: [128, 1, 1],
            registers: 168,
            static_shared_bytes: 0,
            dynamic_shared_bytes: 1024,
            local_bytes: 0,
            blocks_per_sm: 2,
        };
        let launches = Launches { kernels: vec![kernel], weight_bytes: 2_000_000, stored: 1 << 20, two_of_four };
        let rates = Rates { copied: 4e12, dense: 8e14, multiprocessors: 132 };
        let shape = Shape { n: 1024, k: 1024, m };
        Profile::new((shape, 2), (1 << 18, 1 << 19), (launches, rates), (Duration::from_micros(10), None))
    }

    #[test]
    fn the_bound_is_the_slower_of_memory_and_arithmetic() {
        let few = profile(16, false);
        // 512 KiB of weight and 2 x 32 KiB of activations at 4 TB/s.
        assert_eq!((few.bound_by(), few.least_bytes), ("memory", 589_824));
        assert!((few.bound_us() - 0.147_456).abs() < 1e-9, "{}", few.bound_us());
        let many = profile(8192, false);
        // 2 x 2^18 x 2^13 operations at 800 TFLOP/s; 33.5 + 0.5 MB at 4 TB/s take longer.
        assert!((many.compute_us() - 5.368_709_12).abs() < 1e-6 && many.bound_by() == "memory");
        assert_eq!(profile(8192, true).compute_us() * 2.0, many.compute_us());
        assert_eq!(many.executed, 4.0 * many.needed);
        assert_eq!(many.waves(&many.launches.kernels[0]), 0.5);
        assert!((many.reached() - many.bound_us() / 10.0).abs() < 1e-12);
    }
}
