use crate::attention::{Case, Heads, SCALE, textbook};
use crate::numeric::{assert_close, derivative, dot, values, wide};
use crate::rig::{Rig, bits};
use program::ops::AttentionBackward;
use std::ops::Range;

const GROUPED: Heads = Heads { heads: 4, kv_heads: 2, dim: 3 };

struct Tensors {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    dout: Vec<f32>,
    segments: Vec<u32>,
    window: Option<usize>,
}

impl Tensors {
    fn new(rows: usize, segments: &[u32], window: Option<usize>) -> Tensors {
        Tensors {
            q: values(1, rows * 12),
            k: values(2, rows * 6),
            v: values(3, rows * 6),
            dout: values(4, rows * 12),
            segments: segments.to_vec(),
            window,
        }
    }

    /// `dq`, `dk`, `dv` of the rank that owns some rows.
    fn backward(&self, rows: Range<usize>) -> [Vec<f32>; 3] {
        let Heads { heads, kv_heads, dim } = GROUPED;
        let (segments, window) = (&self.segments[..], self.window);
        let case = Case { heads: GROUPED, q: &self.q, k: &self.k, v: &self.v, segments, window };
        let (out, lse) = case.forward();
        let mut rig = Rig::new();
        let op = AttentionBackward {
            q: rig.floats(12, &self.q),
            k: rig.floats(6, &self.k),
            v: rig.floats(6, &self.v),
            out: rig.floats(12, &out),
            lse: rig.floats(4, &lse),
            dout: rig.floats(12, &self.dout),
            dq: rig.out(rows.len(), 12),
            dk: rig.out(rows.len(), 6),
            dv: rig.out(rows.len(), 6),
            segments: rig.words(4, segments),
            heads,
            kv_heads,
            head_dim: dim,
            scale: SCALE,
            window,
            first_row: rows.start,
        };
        let gradients = [op.dq, op.dk, op.dv];
        let ran = rig.run(op);
        gradients.map(|id| ran.floats(id))
    }
}

#[test]
fn gradients_are_the_derivatives() {
    // Two packed sequences and a window shorter than the first.
    for window in [None, Some(3)] {
        let t = Tensors::new(9, &[0, 6, 0, 0, 6, 3, 0, 6], window);
        let (q, k, v, dout) = (wide(&t.q), wide(&t.k), wide(&t.v), wide(&t.dout));
        let loss = |q: &[f64], k: &[f64], v: &[f64]| {
            dot(&textbook(GROUPED, (q, k, v), &t.segments, window).0, &dout)
        };
        let [dq, dk, dv] = t.backward(0..9);
        assert_close(&dq, &derivative(&t.q, |q| loss(q, &k, &v)), 1e-5);
        assert_close(&dk, &derivative(&t.k, |k| loss(&q, k, &v)), 1e-5);
        assert_close(&dv, &derivative(&t.v, |v| loss(&q, &k, v)), 1e-5);
    }
}

#[test]
fn ranks_that_own_parts_of_the_rows_give_the_bytes_of_one() {
    let t = Tensors::new(80, &[0, 70, 0, 0, 70, 10, 0, 70], None);
    let whole = t.backward(0..80);
    let parts = [t.backward(0..33), t.backward(33..66), t.backward(66..80)];
    for (i, whole) in whole.iter().enumerate() {
        let joined: Vec<f32> = parts.iter().flat_map(|part| part[i].clone()).collect();
        assert_eq!(bits(&joined), bits(whole));
    }
}

#[test]
fn a_sequence_is_the_same_packed_and_alone() {
    let packed = Tensors::new(80, &[0, 70, 0, 0, 70, 10, 0, 70], None);
    let tail = |x: &[f32], cols: usize| x[70 * cols..].to_vec();
    let alone = Tensors {
        q: tail(&packed.q, 12),
        k: tail(&packed.k, 6),
        v: tail(&packed.v, 6),
        dout: tail(&packed.dout, 12),
        segments: vec![0, 10, 0, 0],
        window: None,
    };
    assert_eq!(packed.backward(70..80).map(|x| bits(&x)), alone.backward(0..10).map(|x| bits(&x)));
}

#[test]
fn rows_of_no_segment_get_zeros() {
    let t = Tensors::new(5, &[0, 3, 0, 0], None);
    for gradient in t.backward(3..5) {
        assert!(bits(&gradient).iter().all(|&x| x == 0));
    }
}
