"""Claims: their states, the order of jobs, stamps, answers to polls, and how claims and Pods end."""
