//! Sentences -> token ids, as sentence-transformers makes them for this model.

use std::error::Error;
use std::path::{Path, PathBuf};

use tokenizers::{Tokenizer, TruncationParams};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// What sentence-transformers uses for this model, in place of the 128 in tokenizer.json.
const MAX_TOKENS: usize = 256;

/// The tokenizer.json at `given`, or beside the weights, a file or a directory.
///
/// # Errors
/// Where it cannot be read.
pub fn load(given: Option<&Path>, weights: &Path) -> Result<Tokenizer> {
    let path = given.map_or_else(
        || {
            let directory = if weights.is_dir() { Some(weights) } else { weights.parent() };
            directory.unwrap_or(Path::new("")).join("tokenizer.json")
        },
        PathBuf::from,
    );
    let mut tokenizer = Tokenizer::from_file(&path).map_err(|e| {
        format!("cannot read {}: {e}; run `python3 examples/fetch_minilm.py`, or pass --tokenizer", path.display())
    })?;
    // The model takes sentences of their own length.
    tokenizer.with_padding(None);
    tokenizer.with_truncation(Some(TruncationParams { max_length: MAX_TOKENS, ..TruncationParams::default() }))?;
    Ok(tokenizer)
}

/// The ids of each sentence.
///
/// # Errors
/// What the tokenizer cannot take.
pub fn encode(tokenizer: &Tokenizer, sentences: &[String]) -> Result<Vec<Vec<u32>>> {
    let texts = sentences.iter().map(String::as_str).collect();
    let encodings = tokenizer.encode_batch(texts, true)?;
    Ok(encodings.iter().map(|e| e.get_ids().to_vec()).collect())
}
