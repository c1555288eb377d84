//! One call of a weight's kernel: (configuration, tokens) -> grid, maps and arguments -> a launch.

use super::backend::{CudaWeight, DeviceInputs, source_of};
use super::choose;
use super::{Arg, Buffer, CudaError, Element, Kernel, LaunchShape, Options, Stream, Swizzle, TensorMap};
use crate::error::Error;
use fractal_dsl::{DType, Layout};
use fractal_sched::codegen::tables::position_words;
use fractal_sched::codegen::{Decode, KernelConfig, Parameter, TRANSPOSE_SIDE, emit_transpose, parameters};
use std::sync::PoisonError;

/// The kernel and the shape of the launch for one number of tokens.
pub(super) struct Call {
    pub(super) kernel: Kernel,
    /// Tokens of a box of Y, where the copy engine stores it.
    chunk: usize,
    /// Rows of a box of X, where the copy engine brings it.
    column_run: usize,
    /// Layout of what the kernel writes.
    output: Layout,
    parameters: Vec<Parameter>,
    /// Tiles that run on the same tokens together.
    band: usize,
    /// The positions as rows for the copy engine.
    positions: Option<TensorMap>,
    pub(super) shape: LaunchShape,
}

impl CudaWeight {
    /// What a call of this kernel for m tokens needs.
    pub(super) fn call_of(&self, config: &KernelConfig, m: usize) -> Result<Call, Error> {
        let most = (65_535 * config.tokens).min(config.most_tokens(self.plan.pattern.k()));
        if m > most {
            return Err(Error::TooManyTokens { m, most });
        }
        let tokens = m.div_ceil(config.tokens);
        let grid = if let Some(Decode { slab, .. }) = config.decode {
            [(self.tables.load.tiles * (config.rows / slab)) as u32, 1, 1]
        } else if config.is_hopper() {
            let multiprocessors = self.device.info().sm_count as usize;
            [choose::blocks(config, self.tables.load.tiles, m, multiprocessors) as u32, 1, 1]
        } else {
            [(self.tables.load.tiles * config.slabs()) as u32, tokens as u32, 1]
        };
        let positions = match &self.positions {
            Some(positions) if config.is_hopper() => {
                let words = position_words(config);
                let steps = (positions.bytes() / 4 / words) as u64;
                let (row, words) = ([1, words as u32], words as u64);
                Some(TensorMap::matrix(positions, Element::U32, [steps, words], words, row, Swizzle::None)?)
            }
            _ => None,
        };
        Ok(Call {
            kernel: self.kernel_for(config)?,
            chunk: if config.runs { config.chunk() } else { 0 },
            column_run: config.column_run,
            output: config.output,
            parameters: parameters(config),
            band: self.tables.load.band(config.rows),
            positions,
            shape: LaunchShape {
                grid,
                block: [config.threads() as u32, 1, 1],
                shared: config.shared_bytes() as u32,
                // These kernels wait for the one before themselves.
                overlap: config.is_hopper()
                    || (config.decode.is_some() || config.division.is_some()) && self.device.info().arch.major >= 9,
            },
        })
    }

    /// X or Y, of so many rows and m tokens, for the copy engine: boxes of `rows` rows and `tokens` tokens.
    fn map(
        &self,
        matrix: &Buffer,
        [rows, m]: [usize; 2],
        [box_rows, box_tokens]: [usize; 2],
    ) -> Result<TensorMap, CudaError> {
        let element = if self.plan.gemm.dtype() == DType::F16 { Element::F16 } else { Element::Bf16 };
        let swizzle = match box_tokens {
            16 => Swizzle::B32,
            32 => Swizzle::B64,
            _ => Swizzle::B128,
        };
        let shape = [rows as u64, m as u64];
        TensorMap::matrix(matrix, element, shape, m as u64, [box_rows as u32, box_tokens as u32], swizzle)
    }

    /// `turned[columns, rows] = matrix[rows, columns]`.
    fn turn(
        &self,
        stream: &Stream,
        matrix: &Buffer,
        turned: &Buffer,
        rows: usize,
        columns: usize,
    ) -> Result<(), Error> {
        let mut turn = self.transpose.lock().unwrap_or_else(PoisonError::into_inner);
        let kernel = match &*turn {
            Some(kernel) => kernel.clone(),
            None => {
                let generated = emit_transpose(self.plan.gemm.dtype());
                let kernel = self.device.kernel(&source_of(&generated), &generated.name, &Options::default())?;
                turn.insert(kernel).clone()
            }
        };
        drop(turn);
        let side = TRANSPOSE_SIDE as u32;
        let shape = LaunchShape {
            grid: [(columns as u32).div_ceil(side), (rows as u32).div_ceil(side), 1],
            block: [side, 8, 1],
            shared: 0,
            overlap: false,
        };
        let arguments = [Arg::Buffer(matrix), Arg::Buffer(turned), Arg::I32(rows as i32), Arg::I32(columns as i32)];
        // SAFETY: both buffers hold rows times columns elements (checked by `launch`, or allocated so); the kernel checks
        // every place against both.
        unsafe { kernel.launch(stream, &shape, &arguments)? };
        Ok(())
    }

    /// Puts a call whose operands are checked on a stream.
    pub(super) fn put(&self, stream: &Stream, inputs: &DeviceInputs<'_>, call: &Call) -> Result<(), Error> {
        let (n, k, m) = (self.plan.pattern.n(), self.plan.pattern.k(), inputs.m);
        let (gemm, element) = (&self.plan.gemm, self.plan.gemm.dtype().bytes());
        let turned = match gemm.input() {
            Layout::FeatureMajor => None,
            // One token lies the same way in both.
            Layout::TokenMajor if m == 1 => None,
            Layout::TokenMajor => {
                let x = stream.alloc(k * m * element)?;
                self.turn(stream, inputs.x, &x, m, k)?;
                Some(x)
            }
        };
        // Hopper's kernels read and write features first.
        let (other, residuals) = if call.output == gemm.output() {
            (None, Vec::new())
        } else {
            let turned = |&residual: &&Buffer| -> Result<Buffer, Error> {
                let features_first = stream.alloc(n * m * element)?;
                self.turn(stream, residual, &features_first, m, n)?;
                Ok(features_first)
            };
            (Some(stream.alloc(n * m * element)?), inputs.residual.iter().map(turned).collect::<Result<_, _>>()?)
        };
        let y = other.as_ref().unwrap_or(inputs.y);
        let x = turned.as_ref().unwrap_or(inputs.x);
        let map = |matrix, rows, boxes: [usize; 2]| {
            if boxes.contains(&0) { Ok(None) } else { self.map(matrix, [rows, m], boxes).map(Some) }
        };
        let (x_map, y_map) = (map(x, k, [call.column_run, 64])?, map(y, n, [64, call.chunk])?);
        let argument = |parameter: &Parameter| match *parameter {
            Parameter::XMap => x_map.as_ref().map_or(Arg::Buffer(x), Arg::TensorMap),
            Parameter::YMap => y_map.as_ref().map_or(Arg::Buffer(y), Arg::TensorMap),
            Parameter::X => Arg::Buffer(x),
            Parameter::Y => Arg::Buffer(y),
            Parameter::Values => Arg::Buffer(&self.values),
            Parameter::Positions => Arg::Buffer(self.positions.as_ref().unwrap_or(&self.values)),
            Parameter::PositionsMap => call.positions.as_ref().map_or(Arg::Buffer(&self.values), Arg::TensorMap),
            Parameter::Columns => Arg::Buffer(&self.columns),
            Parameter::Begin => Arg::Buffer(&self.begin),
            Parameter::Rows => Arg::Buffer(&self.row_list),
            Parameter::Restored => Arg::Buffer(self.residue.as_ref().map_or(&self.values, |[elements, _]| elements)),
            Parameter::RestoredBegin => Arg::Buffer(self.residue.as_ref().map_or(&self.begin, |[_, begin]| begin)),
            Parameter::Bias(number) => Arg::Buffer(inputs.bias[number]),
            Parameter::Residual(number) => Arg::Buffer(residuals.get(number).unwrap_or(inputs.residual[number])),
            Parameter::Tiles => Arg::I32(self.tables.load.tiles as i32),
            Parameter::Band => Arg::I32(call.band as i32),
            Parameter::N => Arg::I32(n as i32),
            Parameter::M => Arg::I32(m as i32),
        };
        let arguments: Vec<Arg<'_>> = call.parameters.iter().map(argument).collect();
        // SAFETY: the tables were laid out for this kernel and its configuration from a verified weight: every column, those
        // of the residue too, is below k and every row below n; x, y and the epilogue's operands are as long as their shapes (checked above).
        unsafe { call.kernel.launch(stream, &call.shape, &arguments)? };
        if let Some(features_first) = &other {
            self.turn(stream, features_first, inputs.y, n, m)?;
        }
        Ok(())
    }
}
