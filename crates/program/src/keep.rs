//! Keep or recompute: which activations live from forward to backward.
//!
//! Levels are ordered from the most memory and least work to the least memory and most work. A plan uses one level for
//! the first layers and the next one for the rest, so between two levels every split is a candidate, and the fastest
//! that fits is the first that fits.

use crate::graph::{Class, Graph};
use std::fmt;

/// What a layer keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Level {
    /// Everything that backward reads.
    All,
    /// All but what element-wise operations make again: norms and gated activations.
    Elementwise,
    /// Also not the gate and up projections.
    Gated,
    /// Only what attention made and the residual stream: projections are made again.
    Attention,
    /// Only the layer's input: the whole layer runs again.
    Input,
}

impl Level {
    /// Every level, most memory first.
    pub const ALL: [Level; 5] =
        [Level::All, Level::Elementwise, Level::Gated, Level::Attention, Level::Input];

    /// Whether a value of this class is kept.
    pub fn keeps(self, class: Class) -> bool {
        match class {
            Class::Residual => true,
            Class::Normed | Class::Activated => self == Level::All,
            Class::Gated => self <= Level::Elementwise,
            Class::Projected | Class::Rotated | Class::Lora | Class::Middle => self <= Level::Gated,
            Class::Attended => self <= Level::Attention,
            Class::Delta => false,
        }
    }

    /// Name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Level::All => "keep all",
            Level::Elementwise => "recompute element-wise",
            Level::Gated => "recompute gate/up",
            Level::Attention => "recompute projections",
            Level::Input => "recompute layer",
        }
    }
}

/// The levels of a model's layers: `first` for layers below `split`, `rest` for the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// Level of layers below `split`.
    pub first: Level,
    /// Level of the other layers.
    pub rest: Level,
    /// First layer at `rest`.
    pub split: usize,
}

impl Keep {
    /// One level everywhere.
    pub fn uniform(level: Level) -> Keep {
        Keep { first: level, rest: level, split: 0 }
    }

    /// Level of a layer.
    pub fn level(&self, layer: usize) -> Level {
        if layer < self.split { self.first } else { self.rest }
    }

    /// The keep set of a graph: one entry a value.
    pub fn set(&self, graph: &Graph) -> Vec<bool> {
        graph
            .values
            .iter()
            .map(|value| match value.layer {
                None => true,
                Some(layer) => self.level(layer).keeps(value.class),
            })
            .collect()
    }
}

impl fmt::Display for Keep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.split == 0 || self.first == self.rest {
            return f.pad(self.rest.name());
        }
        let text = format!(
            "{} in layers 0-{}, then {}",
            self.first.name(),
            self.split - 1,
            self.rest.name()
        );
        f.pad(&text)
    }
}

/// The fastest keep set whose bytes are at most `limit`, with what `count` found for it beside its bytes; `None` when even
/// the last level does not fit. Levels are taken to be in order of memory; what is returned always fits, since it was
/// counted.
pub fn fastest<T>(
    layers: usize,
    limit: usize,
    mut count: impl FnMut(Keep) -> (usize, T),
) -> Option<(Keep, T)> {
    let mut above: Option<(Level, usize)> = None;
    for level in Level::ALL {
        let (bytes, found) = count(Keep::uniform(level));
        if bytes > limit {
            above = Some((level, bytes));
            continue;
        }
        let Some((above, too_many)) = above else { return Some((Keep::uniform(level), found)) };
        let at = |split| Keep { first: above, rest: level, split };
        let none = Split { layers: 0, bytes, found };
        let most = most_layers(layers, limit, none, too_many, |split| count(at(split)));
        return Some((at(most.layers), most.found));
    }
    None
}

/// Layers at the level above that fit.
struct Split<T> {
    layers: usize,
    bytes: usize,
    found: T,
}

/// The most layers that can be at the level above, from what is counted with none there and the bytes with all.
///
/// Bytes grow almost in a line with the layers, so the first guess is on it, the second proves it, and few more are
/// needed.
fn most_layers<T>(
    layers: usize,
    limit: usize,
    none: Split<T>,
    all: usize,
    mut count: impl FnMut(usize) -> (usize, T),
) -> Split<T> {
    let mut fits = none;
    let (mut too_many, mut too_many_bytes) = (layers, all);
    let mut guesses = 0;
    while fits.layers + 1 < too_many {
        let between = too_many - fits.layers;
        let slope = too_many_bytes.saturating_sub(fits.bytes).max(1) as f64;
        let part = (limit - fits.bytes) as f64 / slope;
        // Every third guess halves, so that a bent curve cannot make the search creep.
        guesses += 1;
        let ahead = if guesses % 3 == 0 { between / 2 } else { (part * between as f64) as usize };
        let split = (fits.layers + ahead).clamp(fits.layers + 1, too_many - 1);
        let (bytes, found) = count(split);
        if bytes <= limit {
            fits = Split { layers: split, bytes, found };
        } else {
            (too_many, too_many_bytes) = (split, bytes);
        }
    }
    fits
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(keep: Keep) -> usize {
        (0..10).map(|layer| [100, 80, 50, 30, 10][keep.level(layer) as usize]).sum()
    }

    /// The keep set, which must be the one whose count comes with it.
    fn fastest(limit: usize) -> Option<Keep> {
        let (keep, counted) = super::fastest(10, limit, |keep| (bytes(keep), keep))?;
        assert!((0..10).all(|layer| keep.level(layer) == counted.level(layer)));
        Some(keep)
    }

    #[test]
    fn the_fastest_that_fits_is_chosen() {
        assert_eq!(fastest(1000), Some(Keep::uniform(Level::All)));
        let keep = fastest(900).unwrap();
        assert_eq!(keep, Keep { first: Level::All, rest: Level::Elementwise, split: 5 });
        assert_eq!(fastest(100).unwrap().level(5), Level::Input);
        assert_eq!(fastest(99), None);
    }

    #[test]
    fn every_limit_is_used_up() {
        for limit in 100..1000 {
            let keep = fastest(limit).unwrap();
            assert!(bytes(keep) <= limit);
            let more = Keep { split: keep.split + 1, ..keep };
            assert!(keep.split == 9 || bytes(more) > limit, "{limit}: {keep:?}");
        }
    }

    #[test]
    fn a_straight_line_takes_two_guesses() {
        let mut counts = 0;
        let count = |split: usize| {
            counts += 1;
            (1000 + 10 * split, ())
        };
        let none = Split { layers: 0, bytes: 1000, found: () };
        assert_eq!(most_layers(36, 1205, none, 1360, count).layers, 20);
        assert_eq!(counts, 2);
    }

    #[test]
    fn each_level_keeps_no_more_than_the_one_before() {
        use Class::*;
        let classes =
            [Residual, Middle, Normed, Projected, Rotated, Attended, Delta, Gated, Activated, Lora];
        for pair in Level::ALL.windows(2) {
            for class in classes {
                assert!(pair[0].keeps(class) || !pair[1].keeps(class), "{pair:?} {class:?}");
            }
        }
    }
}
