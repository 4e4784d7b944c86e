//! Attention as plain loops over one query and head at a time, visible keys only:
//! what every tile must equal, byte for byte.

use super::backward::Backward;
use super::forward::{Forward, fold};
use super::view::visible;
use super::{BLOCK, SPAN};

/// Computes `out` and `lse` as [`super::forward`] does.
///
/// # Panics
/// Where [`super::forward`] would return an error.
pub fn forward(input: &Forward<'_>, out: &mut [f32], out_row: usize, lse: &mut [f32]) {
    let heads = &input.heads;
    for (segment, s) in input.segments.iter().enumerate() {
        for i in 0..s.queries {
            for h in 0..heads.query {
                let row = s.query_row + i;
                let q = &input.q.data[row * input.q.row_stride + h * heads.dim..][..heads.dim];
                let (first, end) = visible(s.position + i, input.window);
                let (acc, log) = row_forward(input, segment, h / heads.group(), q, first..end);
                out[row * out_row + h * heads.dim..][..heads.dim].copy_from_slice(&acc);
                lse[row * heads.query + h] = log;
            }
        }
    }
}

fn key<'a>(input: &Forward<'a>, segment: usize, head: usize, j: usize) -> (&'a [f32], &'a [f32]) {
    let dim = input.heads.dim;
    let row = input.blocks.first_row(segment, j / BLOCK) + j % BLOCK;
    let k = &input.k.data[row * input.k.row_stride + head * dim..][..dim];
    (k, &input.v.data[row * input.v.row_stride + head * dim..][..dim])
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).fold(0.0, |acc, (a, b)| a.mul_add(*b, acc))
}

fn max(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// Sums of a span or of all: m, l, acc.
struct Sums {
    m: f32,
    l: f32,
    acc: Vec<f32>,
}

fn row_forward(
    input: &Forward<'_>,
    segment: usize,
    head: usize,
    q: &[f32],
    keys: std::ops::Range<usize>,
) -> (Vec<f32>, f32) {
    let mut total: Option<Sums> = None;
    for span in keys.start / (SPAN * BLOCK)..=(keys.end - 1) / (SPAN * BLOCK) {
        let s = span_forward(input, segment, head, q, &keys, span);
        total = Some(match total {
            None => s,
            Some(mut t) => {
                let m = max(t.m, s.m);
                let (a, b) = (canon::exp(t.m - m), canon::exp(s.m - m));
                t.l = t.l.mul_add(a, s.l * b);
                for (t, s) in t.acc.iter_mut().zip(&s.acc) {
                    *t = t.mul_add(a, s * b);
                }
                Sums { m, ..t }
            }
        });
    }
    let Sums { m, l, acc } = total.expect("a query sees at least itself");
    let inv = 1.0 / l;
    (acc.iter().map(|a| a * inv + 0.0).collect(), m + canon::ln(l))
}

fn span_forward(
    input: &Forward<'_>,
    segment: usize,
    head: usize,
    q: &[f32],
    keys: &std::ops::Range<usize>,
    span: usize,
) -> Sums {
    let mut m = f32::NEG_INFINITY;
    let mut lanes = [0.0_f32; 16];
    let mut acc = vec![0.0_f32; q.len()];
    for block in span * SPAN..(span + 1) * SPAN {
        let visible = keys.start.max(block * BLOCK)..keys.end.min((block + 1) * BLOCK);
        if visible.is_empty() {
            continue;
        }
        let scores: Vec<f32> =
            visible.clone().map(|j| dot(q, key(input, segment, head, j).0) * input.scale).collect();
        let m_new = scores.iter().fold(m, |m, s| max(m, *s));
        let alpha = canon::exp(m - m_new);
        lanes = lanes.map(|l| l * alpha);
        acc.iter_mut().for_each(|a| *a *= alpha);
        for (j, s) in visible.zip(scores) {
            let p = canon::exp(s - m_new);
            lanes[j % 16] += p;
            for (a, v) in acc.iter_mut().zip(key(input, segment, head, j).1) {
                *a = p.mul_add(*v, *a);
            }
        }
        m = m_new;
    }
    Sums { m, l: fold(&lanes), acc }
}

/// Computes `dq`, `dk` and `dv` (rows as q, k and v, tightly packed) of the whole
/// input as [`super::backward`] does.
///
/// # Panics
/// Where [`super::backward`] would return an error.
pub fn backward(input: &Backward<'_>, dq: &mut [f32], dk: &mut [f32], dv: &mut [f32]) {
    let f = &input.forward;
    let heads = f.heads;
    let (dim, group) = (heads.dim, heads.group());
    for (segment, s) in f.segments.iter().enumerate() {
        for h in 0..heads.query {
            for i in 0..s.queries {
                let row = s.query_row + i;
                let q = &f.q.data[row * f.q.row_stride + h * dim..][..dim];
                let dout = &input.dout.data[row * input.dout.row_stride + h * dim..][..dim];
                let at = row * heads.query + h;
                let (first, end) = visible(s.position + i, f.window);
                for j in first..end {
                    let (k, v) = key(f, segment, h / group, j);
                    let score = dot(q, k) * f.scale;
                    let p = canon::exp(score - input.lse[at]);
                    let ds = (p * (dot(dout, v) - input.delta[at])) * f.scale;
                    let key_row = f.blocks.first_row(segment, j / BLOCK) + j % BLOCK;
                    let to = (key_row * heads.key + h / group) * dim;
                    for d in 0..dim {
                        let dq = &mut dq[(row * heads.query + h) * dim + d];
                        *dq = ds.mul_add(k[d], *dq);
                        dk[to + d] = ds.mul_add(q[d], dk[to + d]);
                        dv[to + d] = p.mul_add(dout[d], dv[to + d]);
                    }
                }
            }
        }
    }
    for x in dq.iter_mut().chain(dk).chain(dv) {
        *x += 0.0;
    }
}

/// `delta` of one row and head.
#[must_use]
pub fn delta(dout: &[f32], out: &[f32]) -> f32 {
    let mut lanes = [0.0_f32; 16];
    for (d, (g, o)) in dout.iter().zip(out).enumerate() {
        lanes[d % 16] = g.mul_add(*o, lanes[d % 16]);
    }
    fold(&lanes)
}
