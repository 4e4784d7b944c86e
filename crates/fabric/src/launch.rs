//! Whether a launcher started this process as one of several.

/// A process among those of a launcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launched {
    /// Its number.
    pub rank: usize,
    /// How many there are.
    pub processes: usize,
}

/// Variables by which launchers tell a process its number and how many there are: Open MPI, PMI (MPICH and kin), PMIx under
/// Slurm.
const VARIABLES: [(&str, &str); 3] = [
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("PMIX_RANK", "SLURM_NTASKS"),
];

/// This process's place, where `mpirun` or `srun` started more than one.
pub fn launched() -> Option<Launched> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<usize>().ok();
    VARIABLES
        .iter()
        .find_map(|(rank, size)| Some(Launched { rank: number(rank)?, processes: number(size)? }))
        .filter(|launched| launched.processes > 1)
}
