"""Sources of stage costs: data sheets, measured profiles, and parallelizers behind the seam."""
