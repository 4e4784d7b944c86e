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

/// The fastest keep set whose bytes, as `bytes` counts them, are at most `limit`; `None` when even the last level does not
/// fit. Levels are taken to be in order of memory; what is returned always fits, since it was counted.
pub fn fastest(layers: usize, limit: usize, mut bytes: impl FnMut(Keep) -> usize) -> Option<Keep> {
    let mut above: Option<Level> = None;
    // Bytes with every layer at the level, and at the one above it.
    let mut totals = [0, 0];
    for level in Level::ALL {
        totals = [bytes(Keep::uniform(level)), totals[0]];
        if totals[0] > limit {
            above = Some(level);
            continue;
        }
        let Some(above) = above else { return Some(Keep::uniform(level)) };
        let split = most_layers(layers, limit, [totals[0], totals[1]], |split| {
            bytes(Keep { first: above, rest: level, split })
        });
        return Some(Keep { first: above, rest: level, split });
    }
    None
}

/// The most layers that can be at the level above, from the bytes with none and with all of them there.
///
/// Bytes grow almost in a line with the layers, so the first guess is on it and few are needed.
fn most_layers(
    layers: usize,
    limit: usize,
    [none, all]: [usize; 2],
    mut bytes: impl FnMut(usize) -> usize,
) -> usize {
    let (mut fits, mut fits_bytes) = (0, none);
    let (mut too_many, mut too_many_bytes) = (layers, all);
    let mut halve = false;
    while fits + 1 < too_many {
        let slope = too_many_bytes.saturating_sub(fits_bytes).max(1) as f64;
        let part = (limit - fits_bytes) as f64 / slope;
        let on_line = fits + (part * (too_many - fits) as f64) as usize;
        // Every second guess halves, so that a bent curve cannot make the search creep.
        let guess = if halve { fits + (too_many - fits) / 2 } else { on_line };
        halve = !halve;
        let split = guess.clamp(fits + 1, too_many - 1);
        let total = bytes(split);
        if total <= limit {
            (fits, fits_bytes) = (split, total);
        } else {
            (too_many, too_many_bytes) = (split, total);
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

    #[test]
    fn the_fastest_that_fits_is_chosen() {
        assert_eq!(fastest(10, 1000, bytes), Some(Keep::uniform(Level::All)));
        let keep = fastest(10, 900, bytes).unwrap();
        assert_eq!(keep, Keep { first: Level::All, rest: Level::Elementwise, split: 5 });
        assert_eq!(fastest(10, 100, bytes).unwrap().level(5), Level::Input);
        assert_eq!(fastest(10, 99, bytes), None);
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
