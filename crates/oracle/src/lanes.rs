//! Sums over 16 lanes.

use canon::tree;

/// Lanes of a sum inside a row.
const LANES: usize = 16;

/// `Σ a_i·b_i`: element `i` continues the chain of lane `i mod 16` by one fused multiply-add, `i` ascending, each lane
/// from +0; then the lanes are added in the mid-split tree.
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0f32; LANES];
    for (i, (&a, &b)) in a.iter().zip(b).enumerate() {
        lanes[i % LANES] = a.mul_add(b, lanes[i % LANES]);
    }
    tree::sum(&lanes)
}

/// Lane sums of the probabilities of attention: added as they come, scaled when the maximum moves.
pub(crate) struct LaneSum {
    lanes: [f32; LANES],
}

impl LaneSum {
    pub(crate) fn new() -> LaneSum {
        LaneSum { lanes: [0.0; LANES] }
    }

    /// `lane = lane · factor` for every lane.
    pub(crate) fn scale(&mut self, factor: f32) {
        for lane in &mut self.lanes {
            *lane *= factor;
        }
    }

    /// `lane[i mod 16] = lane[i mod 16] + value`.
    pub(crate) fn add(&mut self, i: usize, value: f32) {
        self.lanes[i % LANES] += value;
    }

    /// The mid-split tree over the lanes.
    pub(crate) fn fold(&self) -> f32 {
        tree::sum(&self.lanes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_go_to_lanes_by_index_and_lanes_fold_by_the_tree() {
        // Elements 0 and 16 share lane 0: there 2^24 + 1 + 1 would lose both ones; element 1 is lane 1.
        let mut x = vec![0.0; 33];
        (x[0], x[16], x[32]) = (16_777_216.0, 1.0, 1.0);
        assert_eq!(dot(&x, &[1.0; 33]), 16_777_216.0);
        let mut y = vec![0.0; 33];
        (y[0], y[1], y[17]) = (16_777_216.0, 1.0, 1.0);
        assert_eq!(dot(&y, &[1.0; 33]), 16_777_218.0);
    }
}
