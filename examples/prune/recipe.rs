//! A TOML recipe -> of each linear layer its pattern and its method.
//!
//! ```toml
//! method = "second-order"   # or magnitude, taylor, activation-aware
//! pattern = "tvw:64"
//! sparsity = 0.75
//! budget = "error"          # what each layer keeps: uniform, erk, lamp or error
//!
//! [[layer]]
//! name = "encoder.layer.*.attention.self.*"
//! pattern = "2:4"
//! sparsity = 0.5
//! ```

use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};

use fractal::DType;
use fractal::pattern::{Named, Pattern};
use fractal::runtime::prune::budget;
use fractal::runtime::tune::Recipe as Tuned;
use fractal::runtime::{Method, SecondOrder, Taylor};
use fractal_runtime::model::{BertModel, LayerPlan, contrastive};
use serde::Deserialize;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// How a layer is scored and fitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MethodName {
    Magnitude,
    Taylor,
    ActivationAware,
    #[default]
    SecondOrder,
}

/// What tells how much each layer keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Budget {
    #[default]
    Uniform,
    Erk,
    Lamp,
    Error,
}

/// The file.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Recipe {
    pub method: MethodName,
    /// Of all layers that no entry below names; without one, those stay dense.
    pub pattern: Option<String>,
    pub sparsity: f64,
    pub budget: Budget,
    /// What a budget leaves a layer at least and at most, as parts of what it would keep without.
    pub least: f64,
    pub most: f64,
    /// Steps from dense to the patterns, each a pass through the model.
    pub steps: usize,
    /// Storage type of the pruned weights.
    pub dtype: String,
    pub damping: f64,
    /// Stages within a layer.
    pub stages: usize,
    /// A tuned recipe, as `tune model --recipe` writes it, whose patterns are taken.
    pub tuned: Option<PathBuf>,
    /// Passes over the calibration's and the training's sentences in which what is kept is trained towards the dense
    /// embeddings.
    pub distill: usize,
    /// Greatest learning rate of that.
    pub rate: f32,
    /// Weight of the similarities between texts beside that of the embeddings.
    pub relation: f32,
    pub layer: Vec<Entry>,
}

/// Layers that are treated otherwise; the first entry that fits a name is taken.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// A name, in which `*` stands for anything.
    pub name: String,
    /// `dense` leaves it as it is.
    pub pattern: String,
    pub sparsity: Option<f64>,
    pub method: Option<MethodName>,
}

impl Default for Recipe {
    fn default() -> Recipe {
        let usual = SecondOrder::default();
        Recipe {
            method: MethodName::default(),
            pattern: None,
            sparsity: 0.5,
            budget: Budget::default(),
            least: 0.6,
            most: 1.6,
            steps: 1,
            dtype: "f32".into(),
            damping: usual.damping,
            stages: usual.stages,
            tuned: None,
            distill: 0,
            rate: RATE,
            relation: RELATION,
            layer: Vec::new(),
        }
    }
}

/// Of distillation: what found most packages of the test part again, of 1e-4 to 1e-3 and of 0.1 and 1.
pub const RATE: f32 = 6e-4;
pub const RELATION: f32 = 1.0;
/// Sentences that errors of layers alone are measured on.
pub const CURVE_SENTENCES: usize = 96;
/// Sentences of a batch of gradients: pairs of short and long texts.
const GRADIENT_BATCH: usize = 64;
impl Recipe {
    /// From a file.
    ///
    /// # Errors
    /// What is wrong with it, and where.
    pub fn read(path: &Path) -> Result<Recipe> {
        let text = std::fs::read_to_string(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
        let mut recipe: Recipe = toml::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))?;
        if let Some(tuned) = recipe.tuned.as_mut().filter(|tuned| tuned.is_relative()) {
            *tuned = path.parent().unwrap_or(Path::new("")).join(&*tuned);
        }
        recipe.check().map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(recipe)
    }

    /// What can be told before anything runs.
    ///
    /// # Errors
    /// The first field that is out of range.
    pub fn check(&self) -> Result<()> {
        let sparsities = self.layer.iter().filter_map(|entry| entry.sparsity).chain([self.sparsity]);
        if let Some(bad) = sparsities.into_iter().find(|s| !(0.0..1.0).contains(s)) {
            return Err(format!("sparsity: expected a share from 0 to below 1, such as 0.75, found {bad}").into());
        }
        for name in self.layer.iter().map(|entry| &entry.pattern).chain(&self.pattern) {
            pattern_named(name)?;
        }
        if self.distill > 1000 {
            return Err(format!("distill: expected at most 1000 passes, found {}", self.distill).into());
        }
        if !(1..=64).contains(&self.steps) || !(1..=64).contains(&self.stages) {
            return Err(format!("steps and stages: expected 1 to 64, found {} and {}", self.steps, self.stages).into());
        }
        if !(self.damping > 0.0 && self.damping.is_finite()) {
            return Err(format!("damping: expected a number above 0, such as 0.01, found {}", self.damping).into());
        }
        if !(self.least > 0.0 && self.least <= 1.0 && self.most >= 1.0 && self.most.is_finite()) {
            let found = format!("{} and {}", self.least, self.most);
            return Err(format!(
                "least and most: expected parts above 0 and up to 1, and of 1 and more, found {found}"
            )
            .into());
        }
        if !(self.rate > 0.0 && self.rate.is_finite()) {
            return Err(format!("rate: expected a number above 0, such as 0.0001, found {}", self.rate).into());
        }
        if !(self.relation >= 0.0 && self.relation.is_finite()) {
            return Err(
                format!("relation: expected a number of at least 0, such as 0.1, found {}", self.relation).into()
            );
        }
        self.dtype()?;
        if self.pattern.is_none() && self.layer.is_empty() && self.tuned.is_none() {
            return Err("nothing to prune: expected `pattern`, `tuned` or [[layer]]".into());
        }
        Ok(())
    }

    /// Storage type of the pruned weights.
    ///
    /// # Errors
    /// A name that is none.
    pub fn dtype(&self) -> Result<DType> {
        let found = DType::from_name(&self.dtype);
        found.ok_or_else(|| format!("dtype: expected f32, f16 or bf16, found `{}`", self.dtype).into())
    }

    /// Whether any layer is pruned by this method.
    pub fn asks_for(&self, method: MethodName) -> bool {
        self.method == method || self.layer.iter().any(|entry| entry.method == Some(method))
    }

    fn settings(&self) -> SecondOrder {
        SecondOrder { damping: self.damping, stages: self.stages, ..SecondOrder::default() }
    }

    /// The plan for a model; `sentences` are the calibration's, short and long texts of a package in turns.
    ///
    /// # Errors
    /// A pattern that a layer cannot have, a name that fits no layer.
    pub fn plan(
        &self,
        model: &BertModel,
        sentences: &[Vec<u32>],
        mut progress: impl FnMut(String),
    ) -> Result<BTreeMap<String, LayerPlan>> {
        let names = model.linear_names();
        if let Some(entry) = self.layer.iter().find(|entry| !names.iter().any(|name| fits(&entry.name, name))) {
            return Err(format!("[[layer]] `{}` fits no layer; the names are {}", entry.name, names.join(", ")).into());
        }
        let tuned = self.tuned.as_deref().map(Tuned::read).transpose()?;
        // (layer, pattern by name, sparsity, method) of those that are pruned.
        let mut named: Vec<(String, Named, f64, MethodName)> = Vec::new();
        let mut made: BTreeMap<String, (Pattern, MethodName)> = BTreeMap::new();
        for name in &names {
            let entry = self.layer.iter().find(|entry| fits(&entry.name, name));
            let weight = model.weight(name)?;
            if let (None, Some(layer)) = (entry, tuned.as_ref().and_then(|tuned| tuned.layers.get(name))) {
                made.insert(name.clone(), (layer.pattern(weight.n, weight.k)?, self.method));
                continue;
            }
            let pattern = entry.map(|entry| &entry.pattern).or(self.pattern.as_ref());
            let Some(pattern) = pattern.map(|pattern| pattern_named(pattern)).transpose()? else { continue };
            if pattern != Named::Dense {
                let sparsity = entry.and_then(|entry| entry.sparsity).unwrap_or(self.sparsity);
                let method = entry.and_then(|entry| entry.method).unwrap_or(self.method);
                named.push((name.clone(), pattern, sparsity, method));
            }
        }
        let keeps = self.keeps(model, sentences, &named, &mut progress)?;
        for ((name, pattern, _, method), keep) in named.into_iter().zip(keeps) {
            let weight = model.weight(&name)?;
            let told = |e| format!("layer `{name}`, {pattern} keeping {keep:.3}: {e}");
            let pattern = pattern.pattern(weight.n, weight.k, keep).map_err(told)?;
            made.insert(name, (pattern, method));
        }
        let taylor = made.values().any(|(_, method)| *method == MethodName::Taylor);
        let mut gradients = if taylor {
            progress("gradients".into());
            squared_gradients(model, sentences)?
        } else {
            BTreeMap::new()
        };
        let plan = |(name, (pattern, method)): (String, (Pattern, MethodName))| -> Result<(String, LayerPlan)> {
            let method = match method {
                MethodName::Magnitude => Method::Magnitude,
                MethodName::ActivationAware => Method::ActivationAware,
                MethodName::SecondOrder => Method::SecondOrder(self.settings()),
                MethodName::Taylor => {
                    let squares = gradients.remove(&name).ok_or("a layer without gradients")?;
                    Method::Taylor(Taylor::from_squares(squares, pattern.n(), pattern.k())?)
                }
            };
            Ok((name, LayerPlan { pattern, method }))
        };
        made.into_iter().map(plan).collect()
    }

    /// What each layer keeps.
    fn keeps(
        &self,
        model: &BertModel,
        sentences: &[Vec<u32>],
        named: &[(String, Named, f64, MethodName)],
        progress: &mut impl FnMut(String),
    ) -> Result<Vec<f64>> {
        let mut keeps: Vec<f64> = named.iter().map(|(_, _, sparsity, _)| 1.0 - sparsity).collect();
        // A name that fixes its ratio leaves nothing to choose.
        let free: Vec<usize> = (0..named.len()).filter(|&i| named[i].1.fixed_keep().is_none()).collect();
        if self.budget == Budget::Uniform || free.is_empty() {
            return Ok(keeps);
        }
        let weights = free.iter().map(|&i| model.weight(&named[i].0)).collect::<std::result::Result<Vec<_>, _>>()?;
        let elements: Vec<f64> = weights.iter().map(|w| (w.n * w.k) as f64).collect();
        let kept: f64 = free.iter().zip(&elements).map(|(&i, e)| keeps[i] * e).sum();
        let keep = kept / elements.iter().sum::<f64>();
        // 2 of 4 inside cannot keep more than half.
        let most = |named: Named| match named {
            Named::TileVectorWise { .. } | Named::VNM { .. } => 0.5,
            _ => 1.0,
        };
        let ceilings: Vec<f64> = free.iter().map(|&i| most(named[i].1)).collect();
        let ratios = match self.budget {
            Budget::Erk => budget::erdos_renyi(&weights.iter().map(|w| (w.n, w.k)).collect::<Vec<_>>(), keep)?,
            Budget::Lamp => budget::lamp(&weights.iter().map(|w| w.data).collect::<Vec<_>>(), keep)?,
            _ => {
                let by_name: BTreeMap<&str, Named> = named.iter().map(|(n, p, _, _)| (n.as_str(), *p)).collect();
                let some = &sentences[..sentences.len().min(CURVE_SENTENCES)];
                let curves = model.error_curves(
                    some,
                    keep,
                    &self.settings(),
                    |name, n, k| {
                        // Layers that are not asked about are measured as the first one's.
                        let pattern = by_name.get(name).copied().unwrap_or(named[free[0]].1);
                        let least = if pattern.fixed_keep().is_some() { named[free[0]].1 } else { pattern };
                        Ok(least.pattern(n, k, keep * self.least)?)
                    },
                    |name| progress(format!("error curve of {name}")),
                )?;
                let curves: Vec<_> = free.iter().map(|&i| curves[&named[i].0].clone()).collect();
                let most: Vec<f64> = ceilings.iter().map(|ceiling| ceiling.min(keep * self.most)).collect();
                budget::by_error(&curves, keep, keep * self.least, &most)?
            }
        };
        // All together keep what they would by even shares.
        let elements: Vec<usize> = weights.iter().map(|w| w.n * w.k).collect();
        for (&i, ratio) in free.iter().zip(budget::within_ceilings(&ratios, &elements, &ceilings)?) {
            keeps[i] = ratio;
        }
        Ok(keeps)
    }
}

/// Means of squared gradients of the contrastive loss between short and long texts, by layer.
fn squared_gradients(model: &BertModel, sentences: &[Vec<u32>]) -> Result<BTreeMap<String, Vec<f32>>> {
    let mut squares = fractal_runtime::model::Gradients::default();
    for batch in sentences.chunks(GRADIENT_BATCH).filter(|batch| batch.len() >= 4 && batch.len() % 2 == 0) {
        // Queries first, then their documents.
        let queries = batch.iter().step_by(2).chain(batch.iter().skip(1).step_by(2));
        let ordered: Vec<Vec<u32>> = queries.cloned().collect();
        let temperature = 0.05;
        let gradients = model.gradients(&ordered, |e| Ok(contrastive(e, temperature)?.gradient))?;
        squares.add_squares(1.0, &gradients)?;
    }
    if squares.linears.is_empty() {
        return Err("Taylor scores: expected at least two packages of calibration".into());
    }
    Ok(squares.linears.into_iter().map(|(name, gradient)| (name, gradient.weight)).collect())
}

/// A pattern by its name.
///
/// # Errors
/// What is no name; a name with a residue, which a model's layers cannot have here.
pub fn pattern_named(text: &str) -> Result<Named> {
    text.parse::<Named>().map_err(|error| match text.split_once('+') {
        Some((name, _)) if name.trim().parse::<Named>().is_ok() => {
            format!("`{text}`: expected a pattern alone, found one with a residue, which no layer of a model can have here; take `{name}`").into()
        }
        _ => error.into(),
    })
}

/// Whether `name` is what the pattern says, `*` standing for anything.
fn fits(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or("");
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_stand_for_anything() {
        let name = "encoder.layer.3.attention.self.query";
        for (pattern, expected) in [
            (name, true),
            ("*", true),
            ("encoder.layer.3.*", true),
            ("*.query", true),
            ("encoder.*.self.*", true),
            ("encoder.*.output.*", false),
            ("encoder.layer.3", false),
            ("", false),
            ("*query*", true),
            ("*quer", false),
        ] {
            assert_eq!(fits(pattern, name), expected, "{pattern}");
        }
    }

    #[test]
    fn what_is_no_recipe_is_told() {
        let read = |text: &str| -> Result<Recipe> {
            let recipe: Recipe = toml::from_str(text)?;
            recipe.check().map(|()| recipe)
        };
        assert!(read("pattern = \"tw:64\"\nsparsity = 0.75").is_ok());
        for (text, expected) in [
            ("", "nothing to prune"),
            ("pattern = \"tww\"", "tww"),
            ("pattern = \"tw:64\"\nsparsity = 1.0", "from 0 to below 1"),
            ("pattern = \"tw:64+1%\"", "found one with a residue"),
            ("pattern = \"tw:64\"\nsteps = 0", "expected 1 to 64"),
            ("pattern = \"tw:64\"\ndamping = 0.0", "above 0"),
            ("pattern = \"tw:64\"\ndistill = 9223372036854775807", "at most 1000 passes"),
            ("pattern = \"tw:64\"\nrate = -1.0", "rate: expected a number above 0"),
            ("pattern = \"tw:64\"\nrelation = nan", "relation: expected a number of at least 0"),
            ("pattern = \"tw:64\"\ndtype = \"f64\"", "expected f32, f16 or bf16, found `f64`"),
            ("patern = \"tw:64\"", "unknown field"),
            ("method = \"wanda\"", "unknown variant"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
