//! The kernels that `sparse_gemm!` names.

use crate::device::{Device, Kernel};
use crate::error::Error;
use crate::gemm::{Gemm, GemmError};
use crate::prune::{Importance, Pruned, prune};
use crate::tensor::Tensor;
use fractal_dsl::{Dimension, Program};

/// A sparse GEMM that `sparse_gemm!` declared.
pub trait SparseGemm {
    /// What it computes.
    fn program() -> &'static Program;

    /// Prunes a weight [n, k] to its pattern.
    ///
    /// # Errors
    /// A weight of another shape or type than the program says.
    fn prune(weight: &Tensor, importance: &dyn Importance) -> Result<Pruned, Error> {
        let program = Self::program();
        let (found, expected) = (weight.dtype(), program.weight().dtype);
        if found != expected {
            return Err(Error::DType { operand: program.weight().name.clone(), expected, found });
        }
        let pattern = program.pattern(weight.rows(), weight.columns()).map_err(GemmError::from)?;
        Ok(prune(&pattern, weight, importance)?)
    }

    /// Compiles it for a device. N and K must be in the program; see [`SparseGemm::compile_for`] where they are not.
    ///
    /// # Errors
    /// A dimension that is known only at run time, or a device that cannot run it.
    fn compile(device: &Device) -> Result<Kernel, Error> {
        let size = |dimension: Dimension| {
            Self::program().dim(dimension).fixed().ok_or(Error::RuntimeDimension { dimension: dimension.name() })
        };
        Self::compile_for(device, size(Dimension::N)?, size(Dimension::K)?)
    }

    /// Compiles it for a device and a weight of n x k.
    ///
    /// # Errors
    /// Where n and k are not the program's, or the device cannot run it.
    fn compile_for(device: &Device, n: usize, k: usize) -> Result<Kernel, Error> {
        device.compile(&Gemm::of(Self::program(), n, k)?)
    }
}
