//! The ledger of bytes by kind, and the lease that bounds it.

use crate::buffer::Kind;
use std::fmt;

/// Bytes by kind on one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    bytes: [usize; Kind::ALL.len()],
}

impl Ledger {
    /// Bytes of a kind.
    pub fn bytes(&self, kind: Kind) -> usize {
        self.bytes[kind as usize]
    }

    /// Adds bytes to a kind.
    pub fn add(&mut self, kind: Kind, bytes: usize) {
        self.bytes[kind as usize] += bytes;
    }

    /// Bytes of every kind together.
    pub fn total(&self) -> usize {
        self.bytes.iter().sum()
    }

    /// Both together, kind by kind.
    pub fn plus(&self, other: &Ledger) -> Ledger {
        let mut sum = *self;
        for kind in Kind::ALL {
            sum.add(kind, other.bytes(kind));
        }
        sum
    }

    /// The larger of two ledgers, kind by kind: programs that run in turn in the same blocks.
    pub fn max(&self, other: &Ledger) -> Ledger {
        let mut ledger = *self;
        for (mine, theirs) in ledger.bytes.iter_mut().zip(other.bytes) {
            *mine = theirs.max(*mine);
        }
        ledger
    }

    /// Kinds with their bytes, in ledger order.
    pub fn rows(&self) -> impl Iterator<Item = (Kind, usize)> {
        Kind::ALL.into_iter().map(|kind| (kind, self.bytes(kind)))
    }
}

impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = self.rows().filter(|row| row.1 > 0);
        for (i, (kind, bytes)) in rows.enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            write!(f, "{comma}{} {}", kind.name(), Bytes(bytes))?;
        }
        Ok(())
    }
}

/// A ceiling on the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Bytes allowed.
    pub bytes: usize,
}

impl Lease {
    /// Refuses a ledger that is over the ceiling.
    pub fn check(&self, ledger: &Ledger) -> Result<(), LeaseError> {
        if ledger.total() <= self.bytes {
            return Ok(());
        }
        Err(LeaseError { lease: self.bytes, ledger: *ledger })
    }
}

/// A plan over its lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseError {
    /// Bytes allowed.
    pub lease: usize,
    /// Bytes needed.
    pub ledger: Ledger,
}

impl std::error::Error for LeaseError {}

impl fmt::Display for LeaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the plan needs {} and the lease is {} ({} too much): {}",
            Bytes(self.ledger.total()),
            Bytes(self.lease),
            Bytes(self.ledger.total() - self.lease),
            self.ledger
        )
    }
}

/// Bytes for people, in binary units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes(pub usize);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
        for (unit, shift) in UNITS {
            if self.0 >= 1 << shift {
                let text = format!("{:.2} {unit}", self.0 as f64 / (1u64 << shift) as f64);
                return f.pad(&text);
            }
        }
        f.pad(&format!("{} B", self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_over_its_lease_is_refused_with_figures() {
        let mut ledger = Ledger::default();
        ledger.add(Kind::Weight, 3 << 20);
        ledger.add(Kind::Graph, 2 << 20);
        assert_eq!(Lease { bytes: 5 << 20 }.check(&ledger), Ok(()));
        let error = Lease { bytes: (5 << 20) - 1 }.check(&ledger).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("needs 5.00 MiB") && text.contains("weights 3.00 MiB"), "{text}");
    }
}
