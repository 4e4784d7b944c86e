//! Merging a piece's bytes to tokens, in the order of the rules.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

/// The longest piece, in tokens yet to merge, whose next rule is found by looking at each pair. Longer ones take a queue.
const SCAN_LIMIT: usize = 48;

/// The rank of a pair that has no rule.
const NONE: u32 = u32::MAX;

/// The rules of a vocabulary over bytes.
pub(super) struct Merges {
    /// The token of each byte, if it has one.
    bytes: [Option<u32>; 256],
    /// By both parts (the left one in the upper half): the rank of the rule and the token that it makes.
    rules: HashMap<u64, (u32, u32), BuildHasherDefault<PairHasher>>,
}

/// One part of a piece, and the rule that joins it to the next one.
#[derive(Clone, Copy)]
struct Part {
    id: u32,
    rank: u32,
    joined: u32,
}

/// A part in a list with holes: places of the parts before and after it.
#[derive(Clone, Copy)]
struct Link {
    part: Part,
    before: usize,
    after: usize,
}

/// Memory that merging needs, to be used again.
#[derive(Default)]
pub(super) struct Scratch {
    parts: Vec<Part>,
    links: Vec<Link>,
    queue: BinaryHeap<Reverse<(u32, usize)>>,
}

impl Merges {
    /// `rules` holds left part, right part and result, in order of rank. The first of two rules for one pair counts.
    pub(super) fn new(bytes: [Option<u32>; 256], rules: &[(u32, u32, u32)]) -> Merges {
        let mut found =
            HashMap::with_capacity_and_hasher(rules.len(), BuildHasherDefault::default());
        for (rank, &(left, right, joined)) in rules.iter().enumerate() {
            found.entry(pair(left, right)).or_insert((rank as u32, joined));
        }
        Merges { bytes, rules: found }
    }

    /// Whether every byte of a piece has a token. (SmolLM2's vocabulary lacks a few that no text of its training had.)
    pub(super) fn spells(&self, piece: &[u8]) -> bool {
        piece.iter().all(|&byte| self.bytes[usize::from(byte)].is_some())
    }

    /// Appends the tokens of a piece that it [spells](Self::spells): of all pairs side by side the one of the lowest rank is joined, the leftmost of
    /// equals, until none has a rule.
    pub(super) fn apply(&self, piece: &[u8], scratch: &mut Scratch, out: &mut Vec<u32>) {
        if piece.len() <= SCAN_LIMIT {
            self.by_scan(piece, &mut scratch.parts, out);
        } else {
            self.by_queue(piece, scratch, out);
        }
    }

    fn by_scan(&self, piece: &[u8], parts: &mut Vec<Part>, out: &mut Vec<u32>) {
        self.split(piece, parts);
        while let Some((at, part)) = parts.iter().enumerate().min_by_key(|(_, part)| part.rank)
            && part.rank != NONE
        {
            parts[at].id = part.joined;
            parts.remove(at + 1);
            let next = parts.get(at + 1).map(|next| next.id);
            self.pair_up(&mut parts[at], next);
            if at > 0 {
                let next = Some(parts[at].id);
                self.pair_up(&mut parts[at - 1], next);
            }
        }
        out.extend(parts.iter().map(|part| part.id));
    }

    fn by_queue(&self, piece: &[u8], scratch: &mut Scratch, out: &mut Vec<u32>) {
        let Scratch { parts, links, queue } = scratch;
        self.split(piece, parts);
        links.clear();
        queue.clear();
        links.extend(parts.iter().enumerate().map(|(at, &part)| Link {
            part,
            before: at.wrapping_sub(1),
            after: at + 1,
        }));
        let joinable =
            |(at, part): (usize, &Part)| (part.rank != NONE).then_some(Reverse((part.rank, at)));
        queue.extend(parts.iter().enumerate().filter_map(joinable));
        while let Some(Reverse((rank, at))) = queue.pop() {
            // A pair that is no longer there; a rule's rank tells its pair.
            if links[at].part.rank != rank {
                continue;
            }
            let gone = links[at].after;
            links[at].part.id = links[at].part.joined;
            links[at].after = links[gone].after;
            links[gone].part.rank = NONE;
            let after = links[at].after;
            if let Some(next) = links.get_mut(after) {
                next.before = at;
            }
            for at in [links[at].before, at] {
                let Some(&Link { after, .. }) = links.get(at) else { continue };
                let next = links.get(after).map(|next| next.part.id);
                self.pair_up(&mut links[at].part, next);
                if links[at].part.rank != NONE {
                    queue.push(Reverse((links[at].part.rank, at)));
                }
            }
        }
        let mut at = 0;
        while let Some(link) = links.get(at) {
            out.push(link.part.id);
            at = link.after;
        }
    }

    fn split(&self, piece: &[u8], parts: &mut Vec<Part>) {
        parts.clear();
        let ids = piece.iter().filter_map(|&byte| self.bytes[usize::from(byte)]);
        parts.extend(ids.map(|id| Part { id, rank: NONE, joined: NONE }));
        for at in 1..parts.len() {
            let next = Some(parts[at].id);
            self.pair_up(&mut parts[at - 1], next);
        }
    }

    /// Notes the rule that joins a part to the next.
    #[inline]
    fn pair_up(&self, part: &mut Part, next: Option<u32>) {
        let rule = next.and_then(|next| self.rules.get(&pair(part.id, next)));
        (part.rank, part.joined) = rule.copied().unwrap_or((NONE, NONE));
    }
}

fn pair(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

/// Hashes a pair of tokens, which nobody chooses to collide.
#[derive(Default)]
pub(super) struct PairHasher(u64);

impl Hasher for PairHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u64(&mut self, pair: u64) {
        let product = u128::from(pair) * 0x9e37_79b9_7f4a_7c15;
        self.0 = product as u64 ^ (product >> 64) as u64;
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(self.0.rotate_left(8) ^ u64::from(byte));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tokens: every byte, then what the rules make.
    fn merges(rules: &[(u32, u32)]) -> Merges {
        let rules: Vec<_> =
            rules.iter().zip(256..).map(|(&(left, right), id)| (left, right, id)).collect();
        Merges::new(std::array::from_fn(|byte| Some(byte as u32)), &rules)
    }

    fn both_ways(merges: &Merges, piece: &[u8]) -> Vec<u32> {
        let mut scratch = Scratch::default();
        let (mut scanned, mut queued) = (Vec::new(), Vec::new());
        merges.by_scan(piece, &mut scratch.parts, &mut scanned);
        merges.by_queue(piece, &mut scratch, &mut queued);
        assert_eq!(scanned, queued, "{piece:?}");
        scanned
    }

    #[test]
    fn the_lowest_rank_goes_first_and_the_leftmost_of_equals() {
        let (a, b, c) = (u32::from(b'a'), u32::from(b'b'), u32::from(b'c'));
        let merges = merges(&[(b, c), (a, b), (a, 256), (a, a)]);
        assert_eq!(both_ways(&merges, b"abc"), [258]);
        assert_eq!(both_ways(&merges, b"abab"), [257, 257]);
        assert_eq!(both_ways(&merges, b"aaa"), [259, a]);
        assert_eq!(both_ways(&merges, b"aaaa"), [259, 259]);
        assert_eq!(both_ways(&merges, b""), [0; 0]);
        assert_eq!(both_ways(&merges, b"x"), [u32::from(b'x')]);
    }

    /// Scan and queue, on every piece of up to nine letters over two.
    #[test]
    fn both_ways_agree() {
        let (a, b) = (u32::from(b'a'), u32::from(b'b'));
        let merges = merges(&[(a, b), (256, a), (b, b), (256, 256), (257, b), (a, a), (258, 259)]);
        for length in 0..=9 {
            for bits in 0..1u32 << length {
                let piece: Vec<u8> =
                    (0..length).map(|at| if bits >> at & 1 == 1 { b'b' } else { b'a' }).collect();
                both_ways(&merges, &piece);
            }
        }
    }
}
