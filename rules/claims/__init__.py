"""Claims: states of claims, the order of jobs, stamps, answers to polls, and the ends of claims and Pods."""
