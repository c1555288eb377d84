//! Restored elements and the rows of a weight's tiles -> the lists that kernels read.

use crate::prune::Residue;
use fractal_sched::codegen::tables::{NOTHING, RESIDUE_BATCH, RESIDUE_ROWS};

/// The residue of a weight, by the rows of its tiles: eight rows at a time, place `i` holds the `i`-th element of each.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceResidue {
    /// The first place of each eight rows, and one past the last.
    pub begin: Vec<i32>,
    /// Column and value of each element, eight a place; [`NOTHING`] and 0 where a row has no more.
    pub elements: Vec<(i32, f32)>,
}

impl DeviceResidue {
    /// Of tiles that have these rows of W, or [`NOTHING`]; `None` where there are more elements than kernels count.
    pub fn new(rows: &[i32], residue: &Residue) -> Option<DeviceResidue> {
        let mut out = DeviceResidue { begin: vec![0], elements: Vec::new() };
        let row_of = |row: &i32| usize::try_from(*row).map_or((&[][..], &[][..]), |row| residue.row(row));
        for slice in rows.chunks(RESIDUE_ROWS) {
            let longest = slice.iter().map(|row| row_of(row).0.len()).max().unwrap_or(0);
            let places = longest.next_multiple_of(RESIDUE_BATCH);
            let first = out.elements.len();
            out.elements.resize(first + places * RESIDUE_ROWS, (NOTHING, 0.0));
            for (at, row) in slice.iter().enumerate() {
                let (columns, values) = row_of(row);
                for (place, (&column, &value)) in columns.iter().zip(values).enumerate() {
                    out.elements[first + place * RESIDUE_ROWS + at] = (column as i32, value);
                }
            }
            out.begin.push(i32::try_from(out.elements.len() / RESIDUE_ROWS).ok()?);
        }
        Some(out)
    }

    /// Elements as words: column and value in turn.
    pub fn words(&self) -> Vec<u32> {
        self.elements.iter().flat_map(|&(column, value)| [column as u32, value.to_bits()]).collect()
    }
}
