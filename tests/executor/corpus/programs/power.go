package main

import (
	"fmt"
	"os"
	"time"
)

func main() {
	_, _ = os.Args, time.Now
@BEGIN
	var a, b, m uint64
	r := uint64(1)
	fmt.Scan(&a, &b, &m)
	for a %= m; b > 0; b >>= 1 {
		if b&1 == 1 {
			r = r * a % m
		}
		a = a * a % m
	}
	fmt.Println(r)
@END
}
