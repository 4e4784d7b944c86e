//! Prefill and decoding over the paged key/value cache: many sequences in one forward pass.

use crate::blueprint::{Compiled, GenerateShape};
use crate::error::EngineError;
use crate::run::Engine;
use program::buffer::Live;
use program::lower::Io;
use program::ops::{ELSEWHERE, PAGE};
use program::store::PageShare;
use program::{BufferId, Rank, Topology};
use std::ops::Range;

/// Tokens to append to one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advance<'a> {
    /// Pages of the sequence in order: at least those of its tokens after this call. A full page may be another
    /// sequence's too, if both begin with the same tokens.
    pub pages: &'a [u32],
    /// Tokens that the cache holds of it.
    pub past: usize,
    /// The tokens to append.
    pub ids: &'a [u32],
    /// Whether the logits after the last token are wanted.
    pub logits: bool,
}

/// Logits after the last token of one sequence, padding excluded.
pub type Row = Vec<f32>;

impl Engine<'_> {
    /// Appends tokens to sequences in as many forward passes as the planned token count asks for, and gives the logits
    /// that are wanted, in order. How work is cut in passes changes no bit.
    ///
    /// # Errors
    /// As [`Engine::forward_pass`].
    pub fn advance(&mut self, work: &[Advance<'_>]) -> Result<Vec<Row>, EngineError> {
        let shape = self.blueprint.job.generate.ok_or(EngineError::NotPlanned("generation"))?;
        let (mut rows, mut pass, mut room) = (Vec::new(), Vec::new(), shape.tokens);
        for a in work {
            let mut rest = *a;
            loop {
                if room == 0 || pass.len() == shape.sequences {
                    rows.extend(self.forward_pass(&pass)?);
                    (pass, room) = (Vec::new(), shape.tokens);
                }
                let count = rest.ids.len().min(room);
                let last = count == rest.ids.len();
                pass.push(Advance { ids: &rest.ids[..count], logits: rest.logits && last, ..rest });
                room -= count;
                if last {
                    break;
                }
                rest = Advance { past: rest.past + count, ids: &rest.ids[count..], ..rest };
            }
        }
        if !pass.is_empty() {
            rows.extend(self.forward_pass(&pass)?);
        }
        Ok(rows)
    }

    /// Appends tokens to sequences in one forward pass and gives the logits that are wanted, in order. On several ranks
    /// every rank makes the same call and gets the same logits.
    ///
    /// A sequence may attend to a page that another one fills in the same pass.
    ///
    /// # Errors
    /// More tokens or sequences than planned, a sequence longer than planned or than its pages, a page outside the
    /// cache, ids outside the vocabulary.
    pub fn forward_pass(&mut self, work: &[Advance<'_>]) -> Result<Vec<Row>, EngineError> {
        let shape = self.blueprint.job.generate.ok_or(EngineError::NotPlanned("generation"))?;
        self.check_work(work, &shape)?;
        let store = &self.blueprint.store;
        let compiled =
            self.blueprint.generate.as_ref().ok_or(EngineError::NotPlanned("generation"))?;
        self.check_awake(compiled)?;
        let pass =
            Pass::new(work, &Place::of(compiled, store.topology, store.rank, store.page_share));
        let live = pass.live;
        pass.write(&compiled.program.io, &self.frame(compiled, live));
        self.run_planned(|b| &b.generate, live, None)?;
        if live.picked == 0 {
            return Ok(Vec::new());
        }
        let compiled =
            self.blueprint.generate.as_ref().ok_or(EngineError::NotPlanned("generation"))?;
        let logits = compiled.program.io.logits.ok_or(EngineError::NotPlanned("logits"))?;
        let frame = self.frame(compiled, live);
        let (cols, vocab) = (frame.cols(logits), self.graph.vocab);
        Ok(frame.load_f32(logits).chunks(cols).map(|row| row[..vocab].to_vec()).collect())
    }

    fn check_work(&self, work: &[Advance<'_>], shape: &GenerateShape) -> Result<(), EngineError> {
        let (tokens, segments) = (work.iter().map(|a| a.ids.len()).sum(), work.len());
        if tokens > shape.tokens || segments > shape.sequences {
            let (capacity, most) = (shape.tokens, shape.sequences);
            return Err(EngineError::OverCapacity { tokens, segments, capacity, most });
        }
        for a in work {
            if a.ids.is_empty() {
                return Err(EngineError::Empty);
            }
            let length = a.past + a.ids.len();
            self.check_length(length)?;
            for (limit, what) in [
                (shape.length, "the length that the cache was planned for"),
                (a.pages.len() * PAGE, "the pages that the sequence has"),
            ] {
                if length > limit {
                    return Err(EngineError::TooLong { length, limit, what });
                }
            }
            if let Some(&page) = a.pages.iter().find(|&&page| page as usize >= shape.pages) {
                return Err(EngineError::PageOutside { page, pages: shape.pages });
            }
        }
        Ok(())
    }
}

/// Where a rank is among the context ranks of a forward pass.
struct Place {
    cp: usize,
    rank: usize,
    /// Tokens of a context rank, at most.
    share: usize,
    pages: PageShare,
}

impl Place {
    fn of(compiled: &Compiled, topology: Topology, rank: Rank, pages: PageShare) -> Self {
        let share = compiled.program.tokens.div_ceil(topology.cp);
        Place { cp: topology.cp, rank: rank.cp, share, pages }
    }

    /// Row of a key in this rank's cache, if it holds the key's page.
    fn cache_row(&self, page: u32, offset: usize) -> u32 {
        let page = page as usize;
        if self.pages.owner(page) != self.rank {
            return ELSEWHERE;
        }
        (self.pages.local(page) * PAGE + offset) as u32
    }
}

/// The inputs of one forward pass on one rank.
#[derive(Default)]
struct Pass {
    ids: Vec<u32>,
    positions: Vec<u32>,
    segments: Vec<u32>,
    slots: Vec<u32>,
    /// Pages of the sequences (one context rank), or rows of this rank's cache with their owners.
    blocks: Vec<u32>,
    block_rows: Vec<u32>,
    block_owners: Vec<u32>,
    picked: Vec<u32>,
    picked_owners: Vec<u32>,
    live: Live,
}

impl Pass {
    fn new(work: &[Advance<'_>], place: &Place) -> Pass {
        let mut pass = Pass::default();
        let all: usize = work.iter().map(|a| a.ids.len()).sum();
        let bound = |rank: usize| (rank * place.share).min(all);
        let mine = bound(place.rank)..bound(place.rank + 1);
        let mut row = 0;
        for a in work {
            let length = a.past + a.ids.len();
            let first_block = pass.live.blocks;
            pass.push_blocks(&a.pages[..length.div_ceil(PAGE)], place);
            pass.push_tokens(
                a,
                row,
                &mine,
                if place.cp == 1 { first_block } else { first_block * PAGE },
            );
            pass.slots.extend(
                (a.past..length).map(|key| place.cache_row(a.pages[key / PAGE], key % PAGE)),
            );
            row += a.ids.len();
            if a.logits {
                let last = row - 1;
                let here = mine.contains(&last);
                pass.picked.push(if here { (last - mine.start) as u32 } else { ELSEWHERE });
                pass.picked_owners.push((last / place.share) as u32);
            }
        }
        pass.live = Live {
            tokens: mine.len(),
            all_tokens: all,
            picked: pass.picked.len(),
            segments: pass.segments.len() / 4,
            all_segments: work.len(),
            blocks: pass.live.blocks,
            ..Live::default()
        };
        pass
    }

    fn push_blocks(&mut self, pages: &[u32], place: &Place) {
        self.live.blocks += pages.len();
        if place.cp == 1 {
            self.blocks.extend(pages);
            return;
        }
        for &page in pages {
            self.block_rows.extend((0..PAGE).map(|offset| place.cache_row(page, offset)));
            self.block_owners.extend([place.pages.owner(page as usize) as u32; PAGE]);
        }
    }

    /// The tokens of a piece, whose first is row `row` of the pass, that fall in this rank's rows.
    fn push_tokens(&mut self, a: &Advance<'_>, row: usize, mine: &Range<usize>, first_key: usize) {
        let (from, to) = (row.max(mine.start), (row + a.ids.len()).min(mine.end));
        if from >= to {
            return;
        }
        let position = a.past + (from - row);
        self.segments
            .extend([from - mine.start, to - from, position, first_key].map(|word| word as u32));
        self.ids.extend(&a.ids[from - row..to - row]);
        self.positions.extend((position..position + (to - from)).map(|p| p as u32));
    }

    fn write(&self, io: &Io, frame: &arena::Frame<'_>) {
        let store = |id: Option<BufferId>, values: &[u32]| {
            if let Some(id) = id {
                frame.store_u32(id, values);
            }
        };
        store(io.ids, &self.ids);
        store(io.positions, &self.positions);
        store(io.segments, &self.segments);
        store(io.slots, &self.slots);
        store(io.blocks, &self.blocks);
        store(io.block_rows.map(|placed| placed.rows), &self.block_rows);
        store(io.block_rows.map(|placed| placed.owners), &self.block_owners);
        store(io.picked, &self.picked);
        store(io.picked_owners, &self.picked_owners);
    }
}
