//! Program + sizes -> PatternIR: replays the directives of a schedule by the names of the loops.

use crate::directive::Directive;
use crate::lineage::Lineage;
use crate::pattern::{AxisId, Pattern, PatternBuilder, PatternError};
use crate::program::{Dim, Dimension, Parts, Program};
use thiserror::Error;

/// Sizes that do not fit a program, or a schedule that does not fit the sizes.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum ShapeError {
    /// A size other than the one in the header.
    #[error("{dimension} is {found}; the program fixes {dimension} = {expected}")]
    Mismatch {
        /// The dimension.
        dimension: Dimension,
        /// What the header says.
        expected: usize,
        /// What was given.
        found: usize,
    },
    /// A run-time size that was not given.
    #[error("{dimension} is a run-time dimension: give its size")]
    Missing {
        /// The dimension.
        dimension: Dimension,
    },
    /// A size out of range.
    #[error("{dimension} is {found}; expected 1 to 2^31 - 1")]
    Range {
        /// The dimension.
        dimension: Dimension,
        /// What was given.
        found: usize,
    },
    /// A constant without a value.
    #[error("{dimension} = {{ {text} }} has no value yet; give it one with `Program::bind`")]
    Unbound {
        /// The dimension.
        dimension: Dimension,
        /// The constant expression.
        text: String,
    },
    /// A primitive that these sizes do not allow.
    #[error("`{directive}` at N = {n}, K = {k}: {source}")]
    Pattern {
        /// The statement; `the weight` where the sizes themselves are wrong.
        directive: String,
        /// Output features.
        n: usize,
        /// Input features.
        k: usize,
        /// What is wrong.
        source: PatternError,
    },
}

/// All sizes of one use of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sizes {
    /// Tokens; `None` where each call gives its own.
    pub m: Option<usize>,
    /// Output features.
    pub n: usize,
    /// Input features.
    pub k: usize,
}

/// A pattern with the names of its loops.
#[derive(Clone, Debug, PartialEq)]
pub struct Replay {
    pattern: Pattern,
    names: Vec<(String, AxisId)>,
    lineage: LineageEq,
}

impl Replay {
    /// The pattern.
    pub fn pattern(&self) -> &Pattern {
        &self.pattern
    }

    /// The pattern alone.
    pub fn into_pattern(self) -> Pattern {
        self.pattern
    }

    /// The loops of the nest by name, outermost first.
    pub fn names(&self) -> &[(String, AxisId)] {
        &self.names
    }

    /// The loops that a name stands for, outermost first: the loop itself, or what a split or join left of it. Empty
    /// for an unknown name, and for m.
    pub fn loops(&self, name: &str) -> Vec<AxisId> {
        let live = self.lineage.0.descendants(name, self.names.iter().map(|(name, _)| name.as_str()));
        self.names.iter().filter(|(name, _)| live.contains(&name.as_str())).map(|(_, id)| *id).collect()
    }
}

/// Two replays are equal where pattern and names are; the lineage follows from these.
#[derive(Clone, Debug)]
struct LineageEq(Lineage);

impl PartialEq for LineageEq {
    fn eq(&self, _: &LineageEq) -> bool {
        true
    }
}

impl Program {
    /// All sizes of one use: fixed dimensions may be left out, run-time N and K may not.
    ///
    /// # Errors
    /// [`ShapeError`], except for its last variant.
    pub fn resolve(&self, m: Option<usize>, n: Option<usize>, k: Option<usize>) -> Result<Sizes, ShapeError> {
        let missing = |dimension| ShapeError::Missing { dimension };
        Ok(Sizes {
            m: self.size(Dimension::M, m)?,
            n: self.size(Dimension::N, n)?.ok_or(missing(Dimension::N))?,
            k: self.size(Dimension::K, k)?.ok_or(missing(Dimension::K))?,
        })
    }

    fn size(&self, dimension: Dimension, given: Option<usize>) -> Result<Option<usize>, ShapeError> {
        if let Some(found) = given
            && (found == 0 || found >= 1 << 31)
        {
            return Err(ShapeError::Range { dimension, found });
        }
        match (self.dim(dimension), given) {
            (Dim::Const(text), _) => Err(ShapeError::Unbound { dimension, text: text.clone() }),
            (Dim::Fixed(expected), Some(found)) if *expected != found => {
                Err(ShapeError::Mismatch { dimension, expected: *expected, found })
            }
            (Dim::Fixed(size), _) => Ok(Some(*size)),
            (Dim::Runtime, given) => Ok(given),
        }
    }

    /// The pattern of a weight of n x k.
    ///
    /// # Errors
    /// Sizes other than the fixed ones, and primitives that these sizes do not allow.
    pub fn pattern(&self, n: usize, k: usize) -> Result<Pattern, ShapeError> {
        self.replay(n, k).map(Replay::into_pattern)
    }

    /// The pattern of a weight of n x k, with the names of its loops.
    ///
    /// # Errors
    /// As [`Program::pattern`].
    pub fn replay(&self, n: usize, k: usize) -> Result<Replay, ShapeError> {
        self.size(Dimension::N, Some(n))?;
        self.size(Dimension::K, Some(k))?;
        self.0.replay(n, k).map_err(|(number, source)| ShapeError::Pattern {
            directive: number.map_or("the weight".into(), |number| self.0.directives[number].to_string()),
            n,
            k,
            source,
        })
    }
}

impl Parts {
    /// Replays the directives; an error comes with the number of its directive.
    pub fn replay(&self, n: usize, k: usize) -> Result<Replay, (Option<usize>, PatternError)> {
        let builder = PatternBuilder::new(n, k).map_err(|error| (None, error))?;
        let names = vec![(self.axes.n.clone(), AxisId::N), (self.axes.k.clone(), AxisId::K)];
        let mut player = Player { builder, names, lineage: Lineage::default() };
        for (number, directive) in self.directives.iter().enumerate() {
            player.step(directive).map_err(|error| (Some(number), error))?;
        }
        let Player { builder, mut names, lineage } = player;
        let pattern = builder.build();
        let place = |id: AxisId| pattern.order().iter().position(|&other| other == id);
        names.sort_by_key(|(_, id)| place(*id));
        Ok(Replay { pattern, names, lineage: LineageEq(lineage) })
    }
}

struct Player {
    builder: PatternBuilder,
    /// The loops that are live.
    names: Vec<(String, AxisId)>,
    lineage: Lineage,
}

impl Player {
    fn id(&self, name: &str) -> Result<AxisId, PatternError> {
        let known = self.names.iter().find(|(known, _)| known == name).map(|(_, id)| *id);
        known.ok_or(PatternError::Name { found: name.to_owned(), expected: "a loop of the nest".to_owned() })
    }

    fn remove(&mut self, name: &str) {
        self.names.retain(|(known, _)| known != name);
    }

    /// The loops that a name stands for, outermost first.
    fn family(&self, name: &str) -> Vec<AxisId> {
        let order = self.builder.order();
        let live = order.iter().filter_map(|id| self.names.iter().find(|(_, known)| known == id));
        let left = self.lineage.descendants(name, live.map(|(name, _)| name.as_str()));
        left.into_iter().filter_map(|name| self.id(name).ok()).collect()
    }

    fn step(&mut self, directive: &Directive) -> Result<(), PatternError> {
        match directive {
            Directive::Split { axis, factor, outer, inner } => {
                let (first, second) = self.builder.split(self.id(axis)?, *factor)?;
                self.remove(axis);
                self.names.extend([(outer.clone(), first), (inner.clone(), second)]);
                self.lineage.end(axis, "split", &[outer, inner]);
            }
            Directive::Join { a, b, out } => {
                let joined = self.builder.join(self.id(a)?, self.id(b)?)?;
                self.remove(a);
                self.remove(b);
                self.names.push((out.clone(), joined));
                self.lineage.end(a, "join", &[out]);
                self.lineage.end(b, "join", &[out]);
            }
            Directive::Reorder { loops } => {
                let ids = loops.iter().map(|name| self.id(name)).collect::<Result<Vec<_>, _>>()?;
                self.builder.reorder(&ids)?;
            }
            Directive::Skip { axis, per, keep } => {
                let id = self.id(axis)?;
                let per: Vec<AxisId> = match per {
                    Some(names) => names.iter().flat_map(|name| self.family(name)).collect(),
                    None => self.builder.order().iter().copied().take_while(|&other| other != id).collect(),
                };
                let kept = self.builder.skip(id, &per, *keep)?;
                self.remove(axis);
                self.names.push((axis.clone(), kept));
            }
            Directive::Permute { axis } => {
                let permuted = self.builder.permute(self.id(axis)?)?;
                self.remove(axis);
                self.names.push((axis.clone(), permuted));
            }
            _ => {}
        }
        Ok(())
    }
}
