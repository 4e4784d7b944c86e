//! The order of a run, written down: which samples each step sees.

use std::io::{self, Write};

use serde::Serialize;

use crate::dataset::Dataset;
use crate::schedule::Schedule;

/// A line of a manifest.
#[derive(Serialize)]
struct Line {
    /// The step, from 1, as in the log of steps.
    step: usize,
    /// The epoch, from 0.
    epoch: usize,
    /// Each micro-batch's samples as `file:line`.
    micro_batches: Vec<Vec<String>>,
}

impl Schedule {
    /// The order's identity, in hexadecimal: BLAKE3 over the steps in order, each as its epoch and number of
    /// micro-batches, and for each of those its number of samples and their indexes, as u64, little-endian.
    pub fn identity(&mut self) -> String {
        let mut hasher = blake3::Hasher::new();
        for index in 0..self.steps() {
            let Some(step) = self.step(index) else { break };
            let mut numbers = vec![step.epoch, step.micro_batches.len()];
            for micro_batch in step.micro_batches {
                numbers.push(micro_batch.len());
                numbers.extend(micro_batch);
            }
            let bytes = numbers.into_iter().flat_map(|number| (number as u64).to_le_bytes());
            hasher.update(&bytes.collect::<Vec<u8>>());
        }
        hasher.finalize().to_hex().to_string()
    }

    /// Writes the manifest: JSON Lines, one a step, with where each sample comes from.
    ///
    /// # Errors
    /// What `out` gives.
    pub fn write_manifest(&mut self, data: &Dataset, out: &mut dyn Write) -> io::Result<()> {
        for index in 0..self.steps() {
            let Some(step) = self.step(index) else { break };
            let named = |samples: &Vec<usize>| {
                samples.iter().map(|&sample| data.origin(sample).to_string()).collect()
            };
            let line = Line {
                step: step.index + 1,
                epoch: step.epoch,
                micro_batches: step.micro_batches.iter().map(named).collect(),
            };
            serde_json::to_writer(&mut *out, &line)?;
            out.write_all(b"\n")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::dataset::tests::dataset_of_lengths;
    use crate::order::Arrangement;
    use crate::pack::Packing;
    use crate::schedule::{Extent, Schedule};

    fn schedule(seed: u64, accumulation: usize, extent: Extent) -> Schedule {
        let packing = Packing {
            tokens: 10,
            sequences: 2,
            accumulation,
            seed,
            arrangement: Arrangement::Shuffled,
        };
        Schedule::new(&dataset_of_lengths(&[5; 8], 1.0), packing, extent).unwrap()
    }

    #[test]
    fn identity_sees_the_order_the_steps_and_their_number() {
        let identity = schedule(1, 2, Extent::Epochs(2)).identity();
        assert_eq!(schedule(1, 2, Extent::Epochs(2)).identity(), identity);
        assert_eq!(schedule(1, 2, Extent::Steps(4)).identity(), identity);
        for other in [
            schedule(2, 2, Extent::Epochs(2)),
            schedule(1, 1, Extent::Epochs(2)),
            schedule(1, 2, Extent::Epochs(1)),
        ] {
            assert_ne!({ other }.identity(), identity);
        }
    }

    #[test]
    fn the_manifest_names_every_sample_of_every_step() {
        let data = dataset_of_lengths(&[5; 8], 1.0);
        let mut schedule = schedule(1, 2, Extent::Epochs(2));
        let mut text = Vec::new();
        schedule.write_manifest(&data, &mut text).unwrap();
        let lines: Vec<serde_json::Value> = String::from_utf8(text)
            .unwrap()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(lines.len(), 4);
        for (index, line) in lines.iter().enumerate() {
            assert_eq!(line["step"], index + 1);
            let step = schedule.step(index).unwrap();
            assert_eq!(line["epoch"], step.epoch);
            let named: Vec<Vec<String>> =
                serde_json::from_value(line["micro_batches"].clone()).unwrap();
            let samples = step.micro_batches.iter().map(|batch| {
                batch.iter().map(|&sample| data.origin(sample).to_string()).collect::<Vec<_>>()
            });
            assert_eq!(named, samples.collect::<Vec<_>>());
        }
    }
}
