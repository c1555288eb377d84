//! The container: bytes of a safetensors file <-> named tensors and strings.
//!
//! The file is the header's length (8 bytes, little-endian), the header (JSON) and the tensors without gaps. It is written
//! here rather than by the safetensors crate, whose order of strings differs from run to run; and read here, so that what
//! a forged header claims is checked before any sum of it is taken.

use super::error::PrunedFileError;
use safetensors::Dtype;
use safetensors::tensor::TensorInfo;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;

/// The longest header that readers take.
const LONGEST_HEADER: usize = 100_000_000;

/// The name in the header that is none of a tensor.
pub(super) const METADATA: &str = "__metadata__";

#[derive(Serialize, Deserialize)]
struct Header {
    #[serde(rename = "__metadata__", default)]
    strings: BTreeMap<String, String>,
    #[serde(flatten)]
    tensors: BTreeMap<String, TensorInfo>,
}

/// One tensor: what its bytes mean, and the bytes.
#[derive(Clone, Debug)]
pub(super) struct View<'a> {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub bytes: Cow<'a, [u8]>,
}

/// The tensors of a file by name.
pub(super) type Views<'a> = BTreeMap<String, View<'a>>;

/// Bytes of a tensor; `None` where they are too many, or not whole ones.
pub(super) fn size(dtype: Dtype, shape: &[usize]) -> Option<usize> {
    let elements = shape.iter().try_fold(1usize, |all, &extent| all.checked_mul(extent))?;
    let bits = elements.checked_mul(dtype.bitsize())?;
    bits.is_multiple_of(8).then_some(bits / 8)
}

/// Writes strings and tensors: equal ones as equal bytes.
pub(super) fn write(strings: BTreeMap<String, String>, views: &Views<'_>, out: &mut impl Write) -> io::Result<()> {
    let mut order: Vec<(&String, &View<'_>)> = views.iter().collect();
    // Wide elements first, so that each tensor lies at a multiple of its elements' size. The sort is stable.
    order.sort_by_key(|(_, view)| std::cmp::Reverse(view.dtype));
    let mut end = 0;
    let infos = order.iter().map(|(name, view)| {
        let data_offsets = (end, end + view.bytes.len());
        end = data_offsets.1;
        ((*name).clone(), TensorInfo { dtype: view.dtype, shape: view.shape.clone(), data_offsets })
    });
    let mut header = serde_json::to_vec(&Header { tensors: infos.collect(), strings })?;
    header.resize(header.len().next_multiple_of(8), b' ');
    if header.len() > LONGEST_HEADER {
        let reason = format!("a header of {} bytes; expected at most {LONGEST_HEADER}", header.len());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
    }
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(&header)?;
    order.iter().try_for_each(|(_, view)| out.write_all(&view.bytes))
}

/// Reads strings and tensors. Each tensor has as many bytes as its type and shape say; together they are the file.
pub(super) fn read<'a>(bytes: &'a [u8], path: &Path) -> Result<(BTreeMap<String, String>, Views<'a>), PrunedFileError> {
    let wrong = |reason: String| PrunedFileError::Header { path: path.into(), reason };
    let length = |expected: u64| PrunedFileError::Length { path: path.into(), expected, found: bytes.len() as u64 };
    let (len, rest) = bytes.split_first_chunk::<8>().ok_or_else(|| length(8))?;
    let len = u64::from_le_bytes(*len);
    if len > LONGEST_HEADER as u64 {
        return Err(wrong(format!("expected a header of at most {LONGEST_HEADER} bytes, found {len}")));
    }
    let (header, data) = rest.split_at_checked(len as usize).ok_or_else(|| length(len + 8))?;
    let header: Header = serde_json::from_slice(header).map_err(|error| wrong(format!("its header: {error}")))?;
    let mut order: Vec<(String, TensorInfo)> = header.tensors.into_iter().collect();
    order.sort_by_key(|(_, info)| info.data_offsets);
    let mut views = Views::new();
    let mut end = 0usize;
    for (name, info) in order {
        let (start, stop) = info.data_offsets;
        let (dtype, shape) = (info.dtype, info.shape);
        let expected = size(dtype, &shape).and_then(|size| end.checked_add(size));
        if start != end || Some(stop) != expected {
            let expected = expected.map_or("a shape that fits a file".into(), |stop| format!("bytes {end} to {stop}"));
            let reason = format!("tensor `{name}` of type {dtype} and shape {shape:?}: expected {expected}");
            return Err(wrong(format!("{reason}, found {start} to {stop}")));
        }
        let bytes = data.get(start..stop).unwrap_or_default();
        views.insert(name, View { dtype, shape, bytes: Cow::Borrowed(bytes) });
        end = stop;
    }
    // Where tensors lie beyond the end, their bytes above are none: this is what tells.
    if end != data.len() {
        return Err(length((end as u64).saturating_add(len + 8)));
    }
    Ok((header.strings, views))
}
