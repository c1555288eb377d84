//! What became of the loops that a split or a join replaced.

use std::collections::BTreeMap;

/// How a loop ended: the primitive, and the loops it made.
#[derive(Clone, Debug)]
pub(crate) struct End {
    pub by: &'static str,
    pub into: Vec<String>,
}

/// Every loop that is gone, by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lineage(BTreeMap<String, End>);

impl Lineage {
    pub fn end(&mut self, name: &str, by: &'static str, into: &[&str]) {
        self.0.insert(name.to_owned(), End { by, into: into.iter().map(|s| (*s).to_owned()).collect() });
    }

    pub fn get(&self, name: &str) -> Option<&End> {
        self.0.get(name)
    }

    /// The loops that are left of `name`, itself included, in the order of `live`.
    pub fn descendants<'a>(&self, name: &str, live: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
        let mut reached: Vec<&str> = vec![name];
        let mut next = 0;
        while next < reached.len() {
            if let Some(end) = self.0.get(reached[next]) {
                for child in &end.into {
                    if !reached.contains(&child.as_str()) {
                        reached.push(child);
                    }
                }
            }
            next += 1;
        }
        live.into_iter().filter(|name| reached.contains(name)).collect()
    }
}
