//! What is trained: nothing, everything, or LoRA branches on modules that patterns name.

use crate::error::FamilyError;

/// What is trained.
#[derive(Clone, Debug, PartialEq, Default)]
pub enum Train {
    /// Nothing: scoring and generation without an adapter.
    #[default]
    Nothing,
    /// Every parameter.
    Full,
    /// LoRA branches.
    Lora(LoraSpec),
    /// LoRA branches that are there but frozen: scoring and generation with an adapter.
    Adapted(LoraSpec),
}

impl Train {
    pub(crate) fn lora(&self) -> Option<&LoraSpec> {
        match self {
            Train::Lora(spec) | Train::Adapted(spec) => Some(spec),
            _ => None,
        }
    }
}

/// A LoRA adapter's shape.
#[derive(Clone, Debug, PartialEq)]
pub struct LoraSpec {
    /// Rank.
    pub r: usize,
    /// Numerator of the scale.
    pub alpha: f64,
    /// Whether the scale is `alpha / √r` rather than `alpha / r`.
    pub rslora: bool,
    /// Module patterns: `all-linear`, a module's name or the end of its path (`q_proj`, `self_attn.q_proj`), with `*` for
    /// any run of characters (`layers.1*.q_proj`).
    pub targets: Vec<String>,
}

impl LoraSpec {
    /// `alpha / r`, or `alpha / √r`.
    pub fn scale(&self) -> f32 {
        let r = self.r as f64;
        (self.alpha / if self.rslora { r.sqrt() } else { r }) as f32
    }

    pub(crate) fn check(&self) -> Result<(), FamilyError> {
        if self.targets.is_empty() {
            return Err(FamilyError::NoPattern);
        }
        if !(self.alpha.is_finite() && self.alpha > 0.0) {
            return Err(FamilyError::Alpha { alpha: self.alpha });
        }
        Ok(())
    }
}

/// What a pattern matched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PatternMatch {
    /// The pattern.
    pub pattern: String,
    /// Paths of matched modules.
    pub modules: Vec<String>,
    /// Layers without a match, when other layers have one.
    pub layers_without: Vec<usize>,
}

/// The module path in a LoRA parameter's PEFT name, if it is one: `model.layers.0.self_attn.q_proj`.
pub fn lora_module(parameter: &str) -> Option<&str> {
    let path = parameter.strip_prefix("base_model.model.")?;
    path.strip_suffix(".lora_A.weight").or_else(|| path.strip_suffix(".lora_B.weight"))
}

/// Whether a pattern names a module: it equals the path or its end after a dot.
pub(crate) fn matches(pattern: &str, module: &str) -> bool {
    if pattern == "all-linear" {
        return true;
    }
    if pattern.is_empty() {
        return false;
    }
    let starts = std::iter::once(0).chain(module.match_indices('.').map(|(i, _)| i + 1));
    starts.into_iter().any(|start| wildcard(pattern.as_bytes(), &module.as_bytes()[start..]))
}

/// Matches `*` against any run of bytes, the rest literally; backtracks over the last star only.
fn wildcard(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        if p < pattern.len() && pattern[p] == b'*' {
            star = Some((p, t));
            p += 1;
        } else if p < pattern.len() && pattern[p] == text[t] {
            p += 1;
            t += 1;
        } else if let Some((star_p, star_t)) = star {
            p = star_p + 1;
            t = star_t + 1;
            star = Some((star_p, star_t + 1));
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|&c| c == b'*')
}

/// What each pattern matches among `modules` of `layers` layers.
pub(crate) fn match_patterns(
    targets: &[String],
    modules: &[(usize, String)],
    layers: usize,
) -> Result<Vec<PatternMatch>, FamilyError> {
    targets
        .iter()
        .map(|pattern| {
            let matched: Vec<&(usize, String)> =
                modules.iter().filter(|(_, module)| matches(pattern, module)).collect();
            if matched.is_empty() {
                return Err(nothing(pattern, modules));
            }
            let has = |layer: usize| matched.iter().any(|(l, _)| *l == layer);
            Ok(PatternMatch {
                pattern: pattern.clone(),
                layers_without: (0..layers).filter(|&l| !has(l)).collect(),
                modules: matched.into_iter().map(|(_, module)| module.clone()).collect(),
            })
        })
        .collect()
}

fn nothing(pattern: &str, modules: &[(usize, String)]) -> FamilyError {
    let mut names: Vec<&str> = Vec::new();
    for (_, module) in modules {
        let name = module.rsplit('.').next().unwrap_or(module);
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let nearest = nearest(pattern, names.iter().copied().chain(["all-linear"]))
        .map_or(String::new(), |name| format!("did you mean `{name}`? "));
    FamilyError::PatternMatchesNothing {
        pattern: pattern.into(),
        nearest,
        modules: names.join(", "),
    }
}

/// The candidate at the smallest edit distance, if it is near enough to be a misspelling.
pub fn nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    candidates
        .map(|c| (distance(word, c), c))
        .min_by_key(|&(d, _)| d)
        .filter(|&(d, c)| d <= c.len().max(word.len()) / 2)
        .map(|(_, c)| c)
}

/// Levenshtein distance in bytes.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let substituted = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_name_ends_of_paths() {
        let module = "model.layers.12.self_attn.q_proj";
        for pattern in ["q_proj", "self_attn.q_proj", module, "all-linear", "layers.1*.q_proj", "*"]
        {
            assert!(matches(pattern, module), "{pattern}");
        }
        for pattern in ["proj", "q_pro", "attn.q_proj", "k_proj", "layers.2*.q_proj", ""] {
            assert!(!matches(pattern, module), "{pattern}");
        }
    }

    #[test]
    fn a_pattern_that_matches_nothing_is_refused_beside_one_that_does() {
        let modules = vec![(0, "model.layers.0.self_attn.q_proj".to_string())];
        let error = match_patterns(&["q_proj".into(), "q_porj".into()], &modules, 1).unwrap_err();
        assert!(error.to_string().contains("did you mean `q_proj`?"), "{error}");
    }

    #[test]
    fn layers_without_a_match_are_listed() {
        let modules: Vec<_> =
            (0..3).map(|l| (l, format!("model.layers.{l}.self_attn.q_proj"))).collect();
        let matched = match_patterns(&["layers.1.*q_proj".into()], &modules, 3).unwrap();
        assert_eq!(matched[0].layers_without, [0, 2]);
    }
}
